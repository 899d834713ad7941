"""The request log: an id for every request and one log line at its end. Streams are not buffered."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loguru import logger
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from asr_server.core.errors import TABLE, AsrError
from asr_server.core.metrics import with_series
from asr_server.net.access import PROBES

_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACE_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")  # W3C Trace Context, version 00
# Probes come every few seconds: their lines have level DEBUG.
_QUIET_PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics"})
# OpenAI's responses name the version of the protocol; there has been one so far.
_OPENAI_PATHS, _OPENAI_VERSION = "/v1/", "2020-10-01"
# The files of the web page: only its request for `/` is logged at INFO.
_QUIET_PREFIX = "/web/"
# The label of unknown methods and codes: a caller's text never becomes a label.
OTHER = "other"
NO_ROUTE = "-"
METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", OTHER)
# From a short command to a recording of hours. The buckets are narrowest where people wait.
_REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_TEXT_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)


class RequestMetrics:
    """Counters and histograms of the requests and live connections of one app."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "asr_http_requests_total",
            "Completed HTTP requests.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "asr_http_request_seconds",
            "Time to the end of the answer.",
            ["route"],
            registry=registry,
            buckets=_REQUEST_S,
        )
        self.first_text = Histogram(
            "asr_first_text_seconds",
            "Time to the first text of a stream.",
            ["route"],
            registry=registry,
            buckets=_TEXT_S,
        )
        self._errors = Counter(
            "asr_errors_total",
            "Failed requests and live connections; `request_cancelled`: the caller disconnected.",
            ["surface", "code"],
            registry=registry,
        )
        with_series(self._errors, ("http", "socket"), (*TABLE, OTHER))

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count a request that ended. `route`: a pattern, never a path. `status`: 0 if none was sent."""
        known = method if method in METHODS else OTHER
        self._requests.labels(route, known, f"{(status or 499) // 100}xx").inc()
        self._seconds.labels(route).observe(took_s)

    def error(self, code: str, surface: str = "http") -> None:
        """Count a request or live connection (`socket`) that was rejected, failed, or left by its caller."""
        self._errors.labels(surface, code if code in TABLE else OTHER).inc()


@contextmanager
def logged(scope: Scope, send: Send) -> Iterator[Send]:
    """Give a request an id (the caller's, if it is valid), and log and count its outcome at the end of the block.

    The block sends its response with the yielded `send`, which adds the id and the caller's `traceparent` to the
    headers. Every line logged within the block has the id, even lines of libraries.

    Handlers add fields of the log line to `request.state.log` (a dict). `request.state.began_s` is the start of the
    request (`perf_counter`), and a stream sets `first_text_s` when it sends its first text.
    """
    state = scope.setdefault("state", {})
    sent = Headers(scope=scope)
    given, trace = sent.get("x-request-id", ""), _TRACE_PARENT.fullmatch(sent.get("traceparent", ""))
    state["id"] = request_id = given if _VALID_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
    state["log"] = {"trace": trace[1]} if trace else {}
    state["began_s"], status = time.perf_counter(), 0

    async def send_with_id(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = request_id
            if trace:
                headers["traceparent"] = trace[0]
            if scope["path"].startswith(_OPENAI_PATHS):
                headers["openai-version"] = _OPENAI_VERSION
                headers["openai-processing-ms"] = str(round(_took_ms(scope)))
        await send(message)

    try:
        with logger.contextualize(id=request_id):
            yield send_with_id
    except Exception:
        status = status or 500  # the outer middleware sends the response
        raise
    finally:
        _log(scope, request_id, status)
        _count(scope, status)


def _took_ms(scope: Scope) -> float:
    return 1000 * (time.perf_counter() - float(scope["state"]["began_s"]))


def _log(scope: Scope, request_id: str, status: int) -> None:
    state = scope["state"]
    is_quiet = scope["path"] in _QUIET_PATHS or scope["path"].startswith(_QUIET_PREFIX)
    logger.log(
        "DEBUG" if is_quiet else "INFO",
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
    """Return the pattern of the route. The path is text that the caller chose, so it is not logged."""
    return getattr(scope.get("route"), "path", NO_ROUTE)


def _count(scope: Scope, status: int) -> None:
    state, route = scope["state"], _route(scope)
    services = getattr(scope["app"].state, "services", None)
    if services is None:
        return
    metrics = services.request_metrics
    metrics.request(route, scope["method"], status, _took_ms(scope) / 1000)
    if (first_text_s := state.get("first_text_s")) is not None:
        metrics.first_text.labels(route).observe(first_text_s - state["began_s"])
    if scope["path"] in PROBES:  # a probe that answers 503 is not an error
        return
    outcome = state.get("outcome", AsrError.code if status >= 500 else None)
    if outcome is not None or status >= 400:
        metrics.error(outcome or OTHER)
