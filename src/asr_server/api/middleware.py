"""Around every request: its id, and one log line when it is over. Plain ASGI, so that streams pass untouched."""

from __future__ import annotations

import re
import secrets
import time

from loguru import logger
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_server.core.transcript import Transcript

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Probes come every few seconds and say nothing worth a line.
_QUIET_PATHS = frozenset({"/livez", "/readyz", "/health"})
# OpenAI's own answers say which version of its protocol they speak, and there has been one.
_OPENAI_PATHS, _OPENAI_VERSION = "/v1/", "2020-10-01"
# A look at the page is one request for `/` and one for each of its files.
_QUIET_PREFIX = "/web/"


class RequestLog:
    """Gives each HTTP request an id (the caller's, if sane), returns it, and logs the outcome.

    Handlers put what the line should say beside status and time into `request.state.log` (a dict), and set
    `request.state.logged_elsewhere` when another process has written the line.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["id"] = request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        state["log"] = {}
        began_s, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if scope["path"].startswith(_OPENAI_PATHS):
                    headers["openai-version"] = _OPENAI_VERSION
                    headers["openai-processing-ms"] = str(round(1000 * (time.perf_counter() - began_s)))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            status = status or 500  # answered by the layer around this one
            raise
        finally:
            _log(scope, request_id, status, time.perf_counter() - began_s)


def log_fields(transcript: Transcript) -> dict[str, object]:
    """What the request's line says of a transcript: lengths and times, no word of it."""
    return {
        "audio_s": transcript.duration_ms / 1000,
        "spans": len(transcript.segments),
        "decode_ms": round(transcript.timings.decode_ms, 1),
        "queue_ms": round(transcript.timings.queue_ms, 1),
        "infer_ms": round(transcript.timings.infer_ms, 1),
    }


def _request_id(given: str | None) -> str:
    return given if given and _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _log(scope: Scope, request_id: str, status: int, took_s: float) -> None:
    state = scope["state"]
    quiet = scope["path"] in _QUIET_PATHS or scope["path"].startswith(_QUIET_PREFIX) or state.get("logged_elsewhere")
    level = "DEBUG" if quiet else "INFO"
    # The route's pattern, not the path: a path is text that the caller chose.
    route = scope.get("route")
    logger.log(
        level,
        "request",
        id=request_id,
        method=scope["method"],
        route=getattr(route, "path", "-"),
        status=status,
        outcome=state.get("outcome", "ok" if 200 <= status < 400 else "error"),
        ms=round(1000 * took_s, 1),
        **state["log"],
    )
