"""Domain errors to the wire, by one table: code -> HTTP status, OpenAI error type, WebSocket close code.

Routes raise domain errors and never name a status. `docs/errors.md` holds the same table, checked by a test.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from loguru import logger
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_server.core import errors


@dataclass(frozen=True, slots=True)
class WireError:
    """How one error code leaves the server. `final`: OpenAI's clients are told not to repeat it as they do a 5xx."""

    status: int
    type: str
    ws_close: int
    retry_after_s: int | None = None
    final: bool = False


_INVALID = WireError(400, "invalid_request_error", 4000)

TABLE: dict[str, WireError] = {
    errors.MissingParameter.code: _INVALID,
    errors.InvalidValue.code: _INVALID,
    errors.UnsupportedValue.code: _INVALID,
    errors.UnknownParameter.code: _INVALID,
    errors.InvalidType.code: _INVALID,
    errors.InvalidEvent.code: _INVALID,
    errors.NothingToCommit.code: _INVALID,
    errors.ItemNotFound.code: WireError(404, "invalid_request_error", 4000),
    errors.InvalidKey.code: WireError(401, "invalid_request_error", 3000),
    errors.MissingKey.code: WireError(401, "invalid_request_error", 3000),
    errors.ForeignOrigin.code: WireError(403, "invalid_request_error", 3003),
    errors.ForeignHost.code: WireError(403, "invalid_request_error", 3003),
    errors.InvalidLanguage.code: _INVALID,
    errors.UnsupportedLanguage.code: _INVALID,
    errors.MalformedBody.code: _INVALID,
    errors.UnsupportedContentType.code: _INVALID,
    errors.UnknownModel.code: WireError(404, "invalid_request_error", 4000),
    errors.FileTooLarge.code: WireError(413, "invalid_request_error", 1009),
    errors.UploadStalled.code: WireError(408, "invalid_request_error", 1008),
    errors.EmptyFile.code: _INVALID,
    errors.InvalidAudio.code: _INVALID,
    errors.NoAudioTrack.code: _INVALID,
    errors.AudioTooShort.code: _INVALID,
    errors.AudioTooLong.code: _INVALID,
    errors.SessionNotFound.code: WireError(404, "invalid_request_error", 4004),
    errors.SessionExpired.code: WireError(408, "invalid_request_error", 1001),
    errors.SessionTaken.code: WireError(409, "invalid_request_error", 4009),
    errors.JobNotFound.code: WireError(404, "invalid_request_error", 4000),
    errors.JobNotFinished.code: WireError(409, "invalid_request_error", 4000),
    errors.SlowReader.code: WireError(408, "invalid_request_error", 1008),
    errors.Overloaded.code: WireError(429, "rate_limit_error", 1013, retry_after_s=1),
    # Twice more the same recording against the same limit would be two more limits' worth of work for nothing.
    errors.DeadlineExceeded.code: WireError(504, "server_error", 1011, final=True),
    errors.ShuttingDown.code: WireError(503, "server_error", 1001, retry_after_s=5),
    errors.Cancelled.code: WireError(499, "invalid_request_error", 1000),
    errors.JobsUnavailable.code: WireError(503, "server_error", 1013, retry_after_s=60),
    errors.UploadsUnavailable.code: WireError(503, "server_error", 1013, retry_after_s=10),
    errors.TranslationUnavailable.code: WireError(501, "server_error", 1011, final=True),
    errors.TranslationFailed.code: WireError(502, "server_error", 1011),
    errors.ModelUnavailable.code: WireError(503, "server_error", 1013, retry_after_s=10),
    errors.EngineOutOfMemory.code: WireError(503, "server_error", 1013, retry_after_s=5),
    errors.WorkerLost.code: WireError(503, "server_error", 1012, retry_after_s=1),
    errors.WorkerUnavailable.code: WireError(503, "server_error", 1013, retry_after_s=10),
    errors.TranscriptionFailed.code: WireError(500, "server_error", 1011),
    errors.AsrError.code: WireError(500, "server_error", 1011),
}

# How long a caller that is still sending has to read why nobody listens any more.
_PARTING_S = 0.5
_INTERNAL = "The server failed on this request; the log has the details under this request id."


def install(app: FastAPI) -> None:
    """Answer every error of the app with OpenAI's envelope."""
    app.add_exception_handler(errors.AsrError, _on_domain)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def envelope(message: str, kind: str, param: str | None, code: str | None) -> dict[str, object]:
    """The body of every error; all four keys are always there."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def internal() -> dict[str, object]:
    """The body for a fault of ours that has no code of its own."""
    return envelope(_INTERNAL, "server_error", None, errors.AsrError.code)


def respond(error: errors.AsrError) -> JSONResponse:
    """The answer for a domain error."""
    wire = TABLE[error.code]
    wait_s = error.retry_after_s if isinstance(error, errors.Overloaded) else wire.retry_after_s
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    if wire.final:
        headers["x-should-retry"] = "false"
    if wire.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(envelope(error.message, wire.type, error.param, error.code), wire.status, headers)


class ClosingResponse(Response):
    """An answer to a body whose end nobody knows. uvicorn would read on to it, to keep the connection: it is closed.

    Not at once, and nothing is read meanwhile: the reset that a sender gets from a closed connection may overtake what
    it has not read yet.
    """

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.body, answer.status_code)
        self.raw_headers = [*answer.raw_headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, wait, hang up."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await asyncio.sleep(_PARTING_S)
        await send({"type": "http.response.body", "body": b""})


async def _on_domain(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.AsrError)
    request.state.outcome = error.code
    if TABLE[error.code].status >= 500:
        logger.opt(exception=error.__cause__).error(
            "request failed", id=request.state.id, code=error.code, reason=error.message
        )
    answer = respond(error)
    if isinstance(error, errors.FileTooLarge) and "content-length" not in request.headers:
        return ClosingResponse(answer)
    return answer


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    request.state.outcome = errors.InvalidValue.code
    first = error.errors()[0]
    param = str(first["loc"][-1]) if first["loc"] else None
    return respond(errors.InvalidValue(str(first["msg"]), param=param))


async def _on_disconnect(request: Request, _: Exception) -> Response:
    """The caller left in the middle of its body; nobody reads the answer."""
    return await _on_domain(request, errors.Cancelled("The client closed the connection."))


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code: str | None = None
    message = str(error.detail)
    if error.status_code == 404:
        message = f"Invalid URL ({request.method} {request.url.path})"
    elif error.status_code == 405:
        code, message = "method_not_allowed", f"Not allowed here: {request.method}."
    elif error.status_code == 400:
        code = errors.MalformedBody.code
    return JSONResponse(
        envelope(message, "invalid_request_error", None, code), error.status_code, dict(error.headers or {})
    )


class Unexpected:
    """ASGI: answers with 500 where an error has no handler, inside the middleware that adds ids and headers.

    Once an answer has begun its connection is cut instead: the caller must not take the half for the whole.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun:
                raise
            logger.opt(exception=error).error("unexpected error", id=scope["state"]["id"])
            await JSONResponse(internal(), 500)(scope, receive, send)
