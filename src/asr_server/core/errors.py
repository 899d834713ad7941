"""The domain error tree. Errors are independent of HTTP and WebSockets; `net/errors.py` maps `code` to both.

docs/use/errors.md lists the codes.
"""

from __future__ import annotations

from typing import ClassVar


class AsrError(Exception):
    """Root of every error a caller may see.

    `message` is for people and repeats nothing of the request but short, checked values;
    `code` is stable and for programs; `param` names the request field at fault, or is None.
    """

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidInput(AsrError):
    """The request is invalid; sending it again fails again."""


class MissingParameter(InvalidInput):
    """A required field is absent."""

    code = "missing_required_parameter"


class InvalidValue(InvalidInput):
    """A field has a value outside its type or range."""

    code = "invalid_value"


class UnsupportedValue(InvalidInput):
    """A field has a value that this server or model does not support."""

    code = "unsupported_value"


class UnknownParameter(InvalidInput):
    """The protocol has no such parameter."""

    code = "unknown_parameter"


class InvalidType(InvalidInput):
    """A parameter has the wrong JSON type."""

    code = "invalid_type"


class InvalidEvent(InvalidInput):
    """A message on the realtime WebSocket is not a JSON object with a type."""

    code = "invalid_event"


class NothingToCommit(InvalidInput):
    """Less than 100 ms of audio arrived since the last commit."""

    code = "input_audio_buffer_commit_empty"


class ItemNotFound(InvalidInput):
    """The conversation has no item with this id."""

    code = "item_not_found"


class InvalidKey(InvalidInput):
    """The key is unknown or has expired."""

    code = "invalid_api_key"


class MissingKey(InvalidInput):
    """The server requires a key, and the request has none."""

    code = "missing_api_key"


class ForeignOrigin(InvalidInput):
    """The request comes from a web page of another site that `ALLOWED_ORIGINS` does not list."""

    code = "origin_not_allowed"


class ForeignHost(InvalidInput):
    """The request to a server without keys uses a host name that `ALLOWED_ORIGINS` does not list."""

    code = "host_not_allowed"


class WebSocketOnly(InvalidInput):
    """The path is that of a WebSocket, and the request is a plain one."""

    code = "upgrade_required"


class InvalidLanguage(InvalidInput):
    """The language is not a language code or name."""

    code = "invalid_language_format"


class UnsupportedLanguage(InvalidInput):
    """The model does not support the language."""

    code = "unsupported_language"


class MalformedBody(InvalidInput):
    """The request body cannot be parsed according to its content type."""

    code = "malformed_body"


class UnsupportedContentType(InvalidInput):
    """The route does not accept the content type of the request body."""

    code = "unsupported_content_type"


class UnsupportedEncoding(InvalidInput):
    """The request body is compressed (`Content-Encoding`)."""

    code = "unsupported_encoding"


class UnknownModel(InvalidInput):
    """The server has no model with this name."""

    code = "model_not_found"


class FileTooLarge(InvalidInput):
    """The upload exceeds `MAX_UPLOAD_MB`."""

    code = "file_too_large"


class UploadStalled(InvalidInput):
    """The upload stopped before its end or is too slow, although the connection is still open."""

    code = "upload_stalled"


class EmptyFile(InvalidInput):
    """The uploaded file is empty."""

    code = "empty_file"


class InvalidAudio(InvalidInput):
    """The file is not audio in a supported format, or it is damaged before the first sample."""

    code = "invalid_audio"


class NoAudioTrack(InvalidInput):
    """The file contains no audio track."""

    code = "no_audio_track"


class AudioTooShort(InvalidInput):
    """The recording is shorter than 0.1 s."""

    code = "audio_too_short"


class AudioTooLong(InvalidInput):
    """The recording is longer than `MAX_AUDIO_S`."""

    code = "audio_too_long"


class SessionNotFound(InvalidInput):
    """No live session with this id exists (any more); open a new one."""

    code = "session_not_found"


class SessionExpired(InvalidInput):
    """The realtime session reached `REALTIME_SESSION_S`; open a new one."""

    code = "session_expired"


class SessionTaken(InvalidInput):
    """Another connection resumed the live session, so this connection ends."""

    code = "session_taken"


class JobNotFound(InvalidInput):
    """No job with this id exists: it was removed, has expired (`JOB_TTL`) or never existed."""

    code = "job_not_found"


class JobNotFinished(InvalidInput):
    """The job has no result, because it is waiting, running or has failed."""

    code = "job_not_finished"


class IdempotencyKeyReused(InvalidInput):
    """A job with this `Idempotency-Key` has another recording or other options."""

    code = "idempotency_key_reused"


class AddressRefused(InvalidInput):
    """A URL of the request names a host that is unknown or not public, or a port other than 80 and 443."""

    code = "address_not_allowed"


class UrlFailed(InvalidInput):
    """The host of a URL of the request cannot be reached, or did not answer with the content; the message says why."""

    code = "url_failed"


class InvalidReference(InvalidInput):
    """A recording of a voice is too short or long, has less than 1 s of speech or, to be stored, several voices."""

    code = "invalid_reference"


class SpeakerNotFound(InvalidInput):
    """No voice with this id is stored: it was deleted, is another key's, or never existed."""

    code = "speaker_not_found"


class TextTooLong(InvalidInput):
    """The text is longer than the route takes; a text to speak over `MAX_SPEECH_CHARS` can be a job."""

    code = "string_above_max_length"


class SlowReader(InvalidInput):
    """The client does not read what the server sends."""

    code = "slow_reader"


class Overloaded(AsrError):
    """The server is at its limit of work, or the caller at its own limit; try again after `Retry-After` seconds."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = min(60, max(1, retry_after_s))


class DeadlineExceeded(AsrError):
    """The request made no progress for `REQUEST_TIMEOUT`."""

    code = "deadline_exceeded"


class IncompleteTranscript(AsrError):
    """Part of the recording was not heard, and the request has `strict=true`; the message names the seconds."""

    code = "incomplete_transcript"


class ShuttingDown(AsrError):
    """The server is shutting down and accepts no new work."""

    code = "shutting_down"


class Cancelled(AsrError):
    """The caller disconnected before the request was completed."""

    code = "request_cancelled"


class UploadsUnavailable(AsrError):
    """The directory for temporary files has no space for the upload; try again later."""

    code = "uploads_unavailable"


class JobsUnavailable(AsrError):
    """Jobs cannot be stored: `STATE_DIR` is not writable, is full, or is in use by another server, or the database of
    jobs does not answer or is full."""

    code = "jobs_unavailable"


class TranslationError(AsrError):
    """The translation failed, but the transcription succeeded. Messages contain no text and no key."""


class TranslationUnavailable(TranslationError):
    """No translation endpoint is configured, or it rejects this server; the message states what to do."""

    code = "translation_unavailable"


class TranslationFailed(TranslationError):
    """The translation endpoint could not be reached, or returned no usable answer for any line."""

    code = "translation_failed"


class EngineError(AsrError):
    """The engine failed on a valid request."""


class ModelUnavailable(EngineError):
    """The model cannot be loaded; the message states what to do."""

    code = "model_unavailable"


class DecoderUnavailable(EngineError):
    """The process that decodes audio was lost three times in a row; try again."""

    code = "decoder_unavailable"


class EncoderUnavailable(EngineError):
    """The process that encodes audio was lost, or the audio cannot be encoded; try again."""

    code = "encoder_unavailable"


class DocumentUnavailable(EngineError):
    """The process that writes documents was lost, or the document cannot be written; try again."""

    code = "document_unavailable"


class SpeakersUnavailable(EngineError):
    """The process that tells speakers apart was lost, or the voices in `STATE_DIR` cannot be used; try again."""

    code = "speakers_unavailable"


class SpeechUnavailable(EngineError):
    """The server does not speak, or not in this way; the message states what to do."""

    code = "speech_unavailable"


class SpeechFailed(EngineError):
    """The speech engine failed on a sentence; try again."""

    code = "speech_failed"


class EngineOutOfMemory(EngineError):
    """The accelerator has too little memory for this span alone."""

    code = "engine_out_of_memory"


class EngineFailed(EngineError):
    """The accelerator failed for good, so the process ends and has to be started again; try again."""

    code = "engine_failed"


class WorkerLost(EngineError):
    """The worker process ended while it processed the request; try again."""

    code = "worker_lost"


class WorkerUnavailable(EngineError):
    """The worker process fails repeatedly; its last messages are in the log."""

    code = "worker_unavailable"


class TranscriptionFailed(EngineError):
    """The engine raised an exception while it processed the audio."""

    code = "transcription_failed"


def leaves(root: type[AsrError] = AsrError) -> list[type[AsrError]]:
    """Return every error class without subclasses, in the order of definition."""
    subs = root.__subclasses__()
    return [root] if not subs else [leaf for sub in subs for leaf in leaves(sub)]
