"""The errors that a caller may see: a table of codes with their HTTP status and WebSocket close code, and classes for
code that catches errors by type.

docs/use/errors.md says what each code means; a test compares it with the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The HTTP status, the WebSocket close code and the retry advice of an error code."""

    status: int = 400
    ws_close: int = 4000
    retry_after_s: int | None = None
    final: bool = False  # the response asks clients not to retry, as they otherwise do after a 5xx
    message: str = ""  # for errors that are raised without a message

    @property
    def type(self) -> str:
        """The type in OpenAI's error object."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


TABLE = {
    **dict.fromkeys(("missing_required_parameter", "invalid_value", "unsupported_value"), ErrorKind()),
    **dict.fromkeys(("unknown_parameter", "invalid_type", "invalid_event"), ErrorKind()),
    **dict.fromkeys(
        ("input_audio_buffer_commit_empty", "invalid_language_format", "unsupported_language"), ErrorKind()
    ),
    **dict.fromkeys(("malformed_body", "unsupported_content_type", "string_above_max_length"), ErrorKind()),
    **dict.fromkeys(
        ("empty_file", "invalid_audio", "no_audio_track", "audio_too_short", "audio_too_long"), ErrorKind()
    ),
    **dict.fromkeys(("url_failed", "invalid_reference"), ErrorKind()),
    **dict.fromkeys(("item_not_found", "model_not_found", "job_not_found", "speaker_not_found"), ErrorKind(404)),
    **dict.fromkeys(("invalid_api_key", "missing_api_key"), ErrorKind(401, 3000)),
    **dict.fromkeys(("origin_not_allowed", "host_not_allowed"), ErrorKind(403, 3003)),
    "address_not_allowed": ErrorKind(403),
    "session_not_found": ErrorKind(404, 4004),
    **dict.fromkeys(("upload_stalled", "slow_reader"), ErrorKind(408, 1008)),
    "session_expired": ErrorKind(408, 1001),
    "session_taken": ErrorKind(409, 4009, message="The session continues over another connection."),
    "job_not_finished": ErrorKind(409),
    "file_too_large": ErrorKind(413, 1009),
    "unsupported_encoding": ErrorKind(415),
    "idempotency_key_reused": ErrorKind(422),
    # The request itself set the rule that failed, so this is no 5xx: clients do not retry it.
    "incomplete_transcript": ErrorKind(422, 1011),
    "upgrade_required": ErrorKind(426),
    "rate_limit_exceeded": ErrorKind(429, 1013, retry_after_s=1),
    "request_cancelled": ErrorKind(499, 1000, message="The client closed the connection."),
    **dict.fromkeys(("transcription_failed", "internal_error"), ErrorKind(500, 1011)),
    **dict.fromkeys(("translation_unavailable", "speech_unavailable"), ErrorKind(501, 1011, final=True)),
    "translation_failed": ErrorKind(502, 1011),
    "shutting_down": ErrorKind(503, 1001, retry_after_s=5, message="The server is shutting down."),
    "jobs_unavailable": ErrorKind(503, 1013, retry_after_s=60),
    **dict.fromkeys(("uploads_unavailable", "model_unavailable"), ErrorKind(503, 1013, retry_after_s=10)),
    **dict.fromkeys(("decoder_unavailable", "encoder_unavailable"), ErrorKind(503, 1013, retry_after_s=1)),
    **dict.fromkeys(("speakers_unavailable", "speech_failed"), ErrorKind(503, 1013, retry_after_s=1)),
    "engine_out_of_memory": ErrorKind(503, 1013, retry_after_s=5),
    "engine_failed": ErrorKind(503, 1012, retry_after_s=5),
    # Clients would retry twice, and the recording would reach the same limit each time.
    "deadline_exceeded": ErrorKind(504, 1011, final=True),
}


class AsrError(Exception):
    """An error that a caller may see.

    `message` is for people, and repeats only short, checked values of the request. `code`, a key of the table, is for
    programs and stable. `param` names the request field at fault, or is None.
    """

    code = "internal_error"
    _classes: ClassVar[dict[str, type[AsrError]]] = {}

    def __init_subclass__(cls, code: str = "") -> None:
        if code:
            cls.code = code
            cls._classes[code] = cls

    def __init__(self, message: str = "", *, code: str = "", param: str | None = None) -> None:
        self.code = code or self.code
        self.message = message or TABLE[self.code].message
        self.param = param
        super().__init__(self.message)

    @staticmethod
    def of(code: str, message: str, param: str | None = None) -> AsrError:
        """Return the error that another process has reported."""
        fallback = InvalidInput if TABLE[code].status < 500 else AsrError
        return AsrError._classes.get(code, fallback)(message, code=code, param=param)


class InvalidInput(AsrError, code="invalid_value"):
    """The request is invalid; sending it again fails again."""


class UnsupportedLanguage(InvalidInput, code="unsupported_language"): ...


class Overloaded(AsrError, code="rate_limit_exceeded"):
    def __init__(self, message: str, *, code: str = "", param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after_s = min(60, max(1, retry_after_s))


class DeadlineExceeded(AsrError, code="deadline_exceeded"): ...


class ShuttingDown(AsrError, code="shutting_down"): ...


class Cancelled(AsrError, code="request_cancelled"): ...


class JobsUnavailable(AsrError, code="jobs_unavailable"): ...


class TranslationError(AsrError, code="translation_failed"):
    """The translation failed, but the transcription succeeded. Messages contain no text and no key."""


class TranslationUnavailable(TranslationError, code="translation_unavailable"): ...


class EngineError(AsrError):
    """The engine failed on a valid request."""


class ModelUnavailable(EngineError, code="model_unavailable"): ...


class DecoderUnavailable(EngineError, code="decoder_unavailable"): ...


class EncoderUnavailable(EngineError, code="encoder_unavailable"): ...


class SpeakersUnavailable(EngineError, code="speakers_unavailable"): ...


class SpeechFailed(EngineError, code="speech_failed"): ...


class EngineOutOfMemory(EngineError, code="engine_out_of_memory"): ...


class EngineFailed(EngineError, code="engine_failed"): ...


class TranscriptionFailed(EngineError, code="transcription_failed"): ...
