"""Renders errors for clients, by the table of `core/errors.py`. Routes raise errors and never name a status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from loguru import logger
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from asr_server.core import errors
from asr_server.core.errors import TABLE

_METHODS = ("DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT")
# The time in which a caller that is still sending can read the response before its connection is closed.
_CLOSE_DELAY_S = 0.5

Json = dict[str, Any]


class CodedError(Protocol):
    """An error with a code of the table: an `AsrError`, or the record of one."""

    @property
    def code(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def param(self) -> str | None: ...  # the field at fault


def install_handlers(app: FastAPI) -> None:
    """Answer every error of the app with OpenAI's envelope."""
    app.add_exception_handler(errors.AsrError, _on_domain)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def error_object(error: CodedError) -> Json:
    """Return OpenAI's error object; all four keys are always there."""
    return {"message": error.message, "type": TABLE[error.code].type, "param": error.param, "code": error.code}


def error_body(error: CodedError) -> Json:
    """Return the body of an HTTP response, which is also the data of a server-sent event."""
    return {"error": error_object(error)}


def live_error_message(error: CodedError) -> Json:
    """Return the message of `/ws/transcribe`, which repeats the code at the top level."""
    return {**error_body(error), "code": error.code}


def realtime_error(error: CodedError, event_id: str | None = None) -> Json:
    """Return the `error` member of a realtime `error` event. `event_id`: the client's event at fault."""
    return {**error_object(error), "event_id": event_id}


def http_response(error: errors.AsrError) -> JSONResponse:
    """Return the HTTP response for a domain error."""
    mapping = TABLE[error.code]
    wait_s = error.retry_after_s if isinstance(error, errors.Overloaded) else mapping.retry_after_s
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    if mapping.final:
        headers["x-should-retry"] = "false"
    if mapping.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if mapping.status == 426:
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade"}
    return JSONResponse(error_body(error), mapping.status, headers)


# The error for a fault of the server that has no code of its own.
INTERNAL = errors.AsrError("The server failed on this request; the log has the details under this request id.")


class ClosingResponse(Response):
    """A response that closes the connection, for a request whose body has no declared length.

    uvicorn would read the rest of the body to keep the connection. The close waits a moment: the reset of a closed
    connection may overtake a response that the sender has not read yet.
    """

    def __init__(self, response: Response) -> None:
        super().__init__(response.body, response.status_code)
        self.raw_headers = [*response.raw_headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        await asyncio.sleep(_CLOSE_DELAY_S)
        await send({"type": "http.response.body", "body": b""})


async def _on_domain(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.AsrError)
    request.state.outcome = error.code
    if TABLE[error.code].status >= 500:
        logger.opt(exception=error.__cause__).error(
            "request failed", id=request.state.id, code=error.code, reason=error.message
        )
    response = http_response(error)
    if error.code == "file_too_large" and "content-length" not in request.headers:
        return ClosingResponse(response)
    return response


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    request.state.outcome = "invalid_value"
    first = error.errors()[0]
    param = str(first["loc"][-1]) if first["loc"] else None
    return http_response(errors.InvalidInput(str(first["msg"]), param=param))


async def _on_disconnect(request: Request, _: Exception) -> Response:
    """Answer a caller that left while sending its body. Nobody reads the response, but its outcome is logged."""
    return await _on_domain(request, errors.Cancelled())


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code: str | None = None
    message, headers = str(error.detail), dict(error.headers or {})
    if error.status_code == 404:
        return _not_found(request.method, request.url.path)
    if error.status_code == 405:
        code, message = "method_not_allowed", f"Not allowed here: {request.method}."
        headers = {"Allow": _allowed_methods(request)}
    elif error.status_code == 400:
        code = "malformed_body"
    return JSONResponse(_body_without_class(message, code), error.status_code, headers)


async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer requests for unknown paths. Starlette would answer a handshake with an empty 403."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    await WebSocket(scope, receive, send).send_denial_response(_not_found("WebSocket", scope["path"]))


def _not_found(method: str, path: str) -> JSONResponse:
    return JSONResponse(_body_without_class(f"Invalid URL ({method} {path}).{_hint(path)}", None), 404)


def _body_without_class(message: str, code: str | None) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes of the path. Starlette names those of only one route. `GET` implies `HEAD`."""
    found = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    return ", ".join(found + ["HEAD"] * ("GET" in found))


_RECORDINGS = "Recordings are sent to POST /v1/audio/transcriptions, as to OpenAI."
_LIVE_AUDIO = "Live audio goes over WS /v1/realtime or WS /ws/transcribe."
# Prefixes of the paths of other services, and what this server offers instead.
_ELSEWHERE = {
    "/v2/upload": _RECORDINGS,
    "/v2/transcript": f"{_RECORDINGS} POST /v1/jobs answers at once, and the result is fetched later.",
    "/v3/ws": _LIVE_AUDIO,
    "/v1/speech-to-text": _RECORDINGS,
    "/v1/text-to-speech": "Texts are spoken by POST /v1/audio/speech.",
    "/v1/realtime/calls": f"WebRTC is not served. {_LIVE_AUDIO}",
    "/v1/responses": "This server runs no language model.",
    "/v1/chat/completions": "This server runs no language model.",
    "/v1/completions": "This server runs no language model.",
    "/v1/embeddings": "This server runs no language model.",
}


def _hint(path: str) -> str:
    """Return a hint for a client of another service or with a wrong base URL, or ""."""
    for beginning, instead in _ELSEWHERE.items():
        if path == beginning or path.startswith(f"{beginning}/"):
            return f" {instead}"
    if path.endswith("/") and path != "/":
        return " Leave out the slash at its end."
    if path.startswith(("/audio/", "/models", "/realtime", "/jobs", "/speakers")):
        return f" Did you mean /v1{path}? The base URL for OpenAI's clients ends with /v1."
    if path.startswith("/v1/v1/"):
        return " It has /v1 twice: leave it out of the path or of the base URL."
    if "//" in path:
        return " It has two slashes in a row: the base URL must not end with one."
    if (at := path.find("/v1/", 1)) > 0:
        return f" Did you mean {path[at:]}?"
    return ""


def content(examples: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a route's schema that describes its response. `examples`: by media type, "" for none.

    Audio is binary, JSON an object, and everything else text.
    """
    found: dict[str, Any] = {}
    for kind, example in examples.items():
        schema = {"type": "object"} if kind == "application/json" else {"type": "string"}
        schema |= {"format": "binary"} if kind.startswith("audio/") else {}
        found[kind] = {"schema": schema, **({"example": example} if example else {})}
    return {"content": found}


class ErrorDetail(BaseModel):
    """The error of a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail
