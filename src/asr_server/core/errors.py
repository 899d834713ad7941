"""The errors that a caller may see. `api/errors.py` maps each `code` to HTTP and WebSocket.

AsrError
|-- InvalidInput                 the caller's fault: the same request will fail again
|   |-- MissingParameter         missing_required_parameter
|   |-- InvalidValue             invalid_value
|   |-- UnsupportedValue         unsupported_value
|   |-- UnknownParameter         unknown_parameter
|   |-- InvalidType              invalid_type
|   |-- InvalidEvent             invalid_event
|   |-- NothingToCommit          input_audio_buffer_commit_empty
|   |-- ItemNotFound             item_not_found
|   |-- InvalidKey               invalid_api_key
|   |-- MissingKey               missing_api_key
|   |-- ForeignOrigin            origin_not_allowed
|   |-- ForeignHost              host_not_allowed
|   |-- InvalidLanguage          invalid_language_format
|   |-- UnsupportedLanguage      unsupported_language
|   |-- MalformedBody            malformed_body
|   |-- UnsupportedContentType   unsupported_content_type
|   |-- UnknownModel             model_not_found
|   |-- FileTooLarge             file_too_large
|   |-- UploadStalled            upload_stalled
|   |-- EmptyFile                empty_file
|   |-- InvalidAudio             invalid_audio
|   |-- NoAudioTrack             no_audio_track
|   |-- AudioTooShort            audio_too_short
|   |-- AudioTooLong             audio_too_long
|   |-- SessionNotFound          session_not_found
|   |-- SessionExpired           session_expired
|   |-- SessionTaken             session_taken
|   |-- JobNotFound              job_not_found
|   |-- JobNotFinished           job_not_finished
|   `-- SlowReader               slow_reader
|-- Overloaded                   rate_limit_exceeded: try again later
|-- DeadlineExceeded             deadline_exceeded: the server's time limit
|-- ShuttingDown                 shutting_down
|-- Cancelled                    request_cancelled: the caller left
|-- JobsUnavailable              jobs_unavailable: the directory for jobs cannot be used
|-- UploadsUnavailable           uploads_unavailable: no space on the disk for an upload
|-- TranslationError             the translation endpoint's side, and its settings
|   |-- TranslationUnavailable   translation_unavailable: not set up, or access denied; do not retry
|   `-- TranslationFailed        translation_failed: the endpoint gave no usable response
`-- EngineError                  the server's fault or the operator's
    |-- ModelUnavailable         model_unavailable: cannot be loaded; the message says what to do
    |-- EngineOutOfMemory        engine_out_of_memory
    |-- WorkerLost               worker_lost: the process died; try again
    |-- WorkerUnavailable        worker_unavailable: the process does not stay up
    `-- TranscriptionFailed      transcription_failed
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
    """The caller's fault: the same request will fail again."""

    code = "invalid_value"


class MissingParameter(InvalidInput):
    """A required field is absent."""

    code = "missing_required_parameter"


class InvalidValue(InvalidInput):
    """A field has a value outside its type or range."""

    code = "invalid_value"


class UnsupportedValue(InvalidInput):
    """A field has a valid value that this server or model does not support."""

    code = "unsupported_value"


class UnknownParameter(InvalidInput):
    """A parameter that the protocol does not have."""

    code = "unknown_parameter"


class InvalidType(InvalidInput):
    """A parameter of the wrong JSON type."""

    code = "invalid_type"


class InvalidEvent(InvalidInput):
    """A message of the realtime socket that is not a JSON object with a type."""

    code = "invalid_event"


class NothingToCommit(InvalidInput):
    """Less than 100 ms of audio came since the last commit."""

    code = "input_audio_buffer_commit_empty"


class ItemNotFound(InvalidInput):
    """The conversation has no item of this id."""

    code = "item_not_found"


class InvalidKey(InvalidInput):
    """An unknown or expired key."""

    code = "invalid_api_key"


class MissingKey(InvalidInput):
    """A request without a key to a server that has keys."""

    code = "missing_api_key"


class ForeignOrigin(InvalidInput):
    """A request from a web page of another site that `ALLOWED_ORIGINS` does not name."""

    code = "origin_not_allowed"


class ForeignHost(InvalidInput):
    """A server without keys was addressed by a host name that is not its own; `ALLOWED_ORIGINS` can allow it."""

    code = "host_not_allowed"


class InvalidLanguage(InvalidInput):
    """A language field that does not have the form of a code or name."""

    code = "invalid_language_format"


class UnsupportedLanguage(InvalidInput):
    """A real language that the model was not trained on."""

    code = "unsupported_language"


class MalformedBody(InvalidInput):
    """The request body cannot be parsed as its content type."""

    code = "malformed_body"


class UnsupportedContentType(InvalidInput):
    """The request body is of a type that the route does not read."""

    code = "unsupported_content_type"


class UnknownModel(InvalidInput):
    """A model name that this server does not serve."""

    code = "model_not_found"


class FileTooLarge(InvalidInput):
    """The upload exceeds `MAX_UPLOAD_MB`."""

    code = "file_too_large"


class UploadStalled(InvalidInput):
    """The client stopped sending in the middle of its upload but did not close the connection."""

    code = "upload_stalled"


class EmptyFile(InvalidInput):
    """The uploaded file has no bytes."""

    code = "empty_file"


class InvalidAudio(InvalidInput):
    """The bytes are not audio in a supported format, or are damaged before the first sample."""

    code = "invalid_audio"


class NoAudioTrack(InvalidInput):
    """A valid container without an audio track."""

    code = "no_audio_track"


class AudioTooShort(InvalidInput):
    """Less audio than a word needs (0.1 s), or none at all."""

    code = "audio_too_short"


class AudioTooLong(InvalidInput):
    """More audio than `MAX_AUDIO_S`."""

    code = "audio_too_long"


class SessionNotFound(InvalidInput):
    """There is no live session with this id any more; open a new one."""

    code = "session_not_found"


class SessionExpired(InvalidInput):
    """The realtime session reached `REALTIME_SESSION_S`; open a new one."""

    code = "session_expired"


class SessionTaken(InvalidInput):
    """The live session was resumed on another connection, so this one ends."""

    code = "session_taken"


class JobNotFound(InvalidInput):
    """There is no job with this id: it was never created, was removed, or is older than `JOB_TTL`."""

    code = "job_not_found"


class JobNotFinished(InvalidInput):
    """The job has no result: it waits, runs or has failed."""

    code = "job_not_finished"


class SlowReader(InvalidInput):
    """The client does not read what the server sends."""

    code = "slow_reader"


class Overloaded(AsrError):
    """The server, or this caller's share of it, is fully used; try again after `Retry-After` seconds."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = min(60, max(1, retry_after_s))


class DeadlineExceeded(AsrError):
    """The work was not done within `REQUEST_TIMEOUT`."""

    code = "deadline_exceeded"


class ShuttingDown(AsrError):
    """The server is draining and takes no new work."""

    code = "shutting_down"


class Cancelled(AsrError):
    """The caller left before the work was done."""

    code = "request_cancelled"


class UploadsUnavailable(AsrError):
    """The disk for temporary files is too full for the upload; try again later."""

    code = "uploads_unavailable"


class JobsUnavailable(AsrError):
    """Jobs cannot be kept: `STATE_DIR` is not writable, full, or another server's."""

    code = "jobs_unavailable"


class TranslationError(AsrError):
    """The transcription succeeded and the translation failed. Messages contain no text and no key."""

    code = "translation_failed"


class TranslationUnavailable(TranslationError):
    """No translation endpoint is set up, or it denies access; the message tells the operator what to do."""

    code = "translation_unavailable"


class TranslationFailed(TranslationError):
    """The translation endpoint could not be reached, or gave no usable response for any line."""

    code = "translation_failed"


class EngineError(AsrError):
    """The engine failed on a valid request."""

    code = "transcription_failed"


class ModelUnavailable(EngineError):
    """The model cannot be loaded; the message tells the operator what to do."""

    code = "model_unavailable"


class EngineOutOfMemory(EngineError):
    """The accelerator has no memory for even this one span."""

    code = "engine_out_of_memory"


class WorkerLost(EngineError):
    """The worker process ended while it worked on this; try again."""

    code = "worker_lost"


class WorkerUnavailable(EngineError):
    """The worker process crashes repeatedly; its last output is in the log."""

    code = "worker_unavailable"


class TranscriptionFailed(EngineError):
    """The engine raised an error on this span."""

    code = "transcription_failed"


def leaves(root: type[AsrError] = AsrError) -> list[type[AsrError]]:
    """Every error class without subclasses, in the order of definition."""
    subs = root.__subclasses__()
    return [root] if not subs else [leaf for sub in subs for leaf in leaves(sub)]
