"""Around every request: its id, and one log line when it is over. Plain ASGI, so that streams pass untouched."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import fields

from loguru import logger
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr_server.api.edge.access import PROBES
from asr_server.api.metrics.labels import NO_ROUTE, OTHER, Transport
from asr_server.core.errors import AsrError
from asr_server.core.transcript import Timings, Transcript

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Probes come every few seconds and say nothing worth a line.
_QUIET_PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics"})
# OpenAI's own answers say which version of its protocol they speak, and there has been one.
_OPENAI_PATHS, _OPENAI_VERSION = "/v1/", "2020-10-01"
# A look at the page is one request for `/` and one for each of its files.
_QUIET_PREFIX = "/web/"


class RequestLog:
    """Gives each HTTP request an id (the caller's, if sane), returns it, and logs the outcome.

    Handlers put what the line should say beside status and time into `request.state.log` (a dict), and set
    `request.state.logged_elsewhere` when another process has written the line. When the request began is in
    `request.state.began_s` (`perf_counter`), and a stream notes in `first_text_s` when its first text went.
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
        state["began_s"], status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if scope["path"].startswith(_OPENAI_PATHS):
                    headers["openai-version"] = _OPENAI_VERSION
                    headers["openai-processing-ms"] = str(round(_took_ms(scope)))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            status = status or 500  # answered by the layer around this one
            raise
        finally:
            _log(scope, request_id, status)
            _count(scope, status)


def log_fields(transcript: Transcript) -> dict[str, object]:
    """What the request's line says of a transcript: lengths and times, no word of it."""
    return {
        "audio_s": transcript.duration_ms / 1000,
        "spans": len(transcript.segments),
        **{f"{part}_ms": round(took_ms, 1) for part, took_ms in _parts(transcript.timings)},
    }


def server_timing(request: Request, timings: Timings) -> dict[str, str]:
    """The header that says where the time went, in milliseconds: the figures of the log line."""
    parts = [*_parts(timings), ("total", _took_ms(request.scope))]
    return {"Server-Timing": ", ".join(f"{part};dur={took_ms:.1f}" for part, took_ms in parts)}


def _parts(timings: Timings) -> list[tuple[str, float]]:
    return [(field.name.removesuffix("_ms"), getattr(timings, field.name)) for field in fields(timings)]


def _took_ms(scope: Scope) -> float:
    return 1000 * (time.perf_counter() - float(scope["state"]["began_s"]))


def _request_id(given: str | None) -> str:
    return given if given and _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _log(scope: Scope, request_id: str, status: int) -> None:
    state = scope["state"]
    quiet = scope["path"] in _QUIET_PATHS or scope["path"].startswith(_QUIET_PREFIX) or state.get("logged_elsewhere")
    level = "DEBUG" if quiet else "INFO"
    logger.log(
        level,
        "request",
        id=request_id,
        method=scope["method"],
        route=_route(scope),
        status=status,
        outcome=state.get("outcome", "ok" if 200 <= status < 400 else "error"),
        ms=round(_took_ms(scope), 1),
        **state["log"],
    )


def _route(scope: Scope) -> str:
    """The route's pattern, not the path: a path is text that the caller chose."""
    return getattr(scope.get("route"), "path", NO_ROUTE)


def _count(scope: Scope, status: int) -> None:
    state, route = scope["state"], _route(scope)
    services = getattr(scope["app"].state, "services", None)
    if services is None:  # a gateway: its worker counts
        return
    meters = services.meters.http
    meters.request(route, scope["method"], status, _took_ms(scope) / 1000)
    if (first_text_s := state.get("first_text_s")) is not None:
        meters.first_text(route, first_text_s - state["began_s"])
    if scope["path"] in PROBES:  # that new work should go elsewhere is an answer, and no fault
        return
    outcome = state.get("outcome", AsrError.code if status >= 500 else None)
    if outcome is not None or status >= 400:
        meters.error(Transport.HTTP, outcome or OTHER)
