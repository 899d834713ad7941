"""The middleware that each request and each WebSocket handshake passes before its route, in this order:

1. The request log: an id for each request, and a line with its outcome.
2. `HEAD` for every route that has `GET`: the same response without its body.
3. Security headers for browsers on every response.
4. CORS for the pages of ALLOWED_ORIGINS.
5. A response with status 500 for an unexpected error.
6. Access: the host name of the request, the origin of the page, the key, and the caller's quota.

A request that passes has a `Caller` in its state, unless its path is open. Every route is protected, even a new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from loguru import logger
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from asr_server import web
from asr_server.core.errors import AsrError, Cancelled, InvalidInput
from asr_server.net import websocket_io
from asr_server.net.access import EPHEMERAL, PROBES, AccessRules, Caller, Place, fingerprint, presented
from asr_server.net.errors import INTERNAL, http_response
from asr_server.net.loop_time import REFUSAL_S, loop_time
from asr_server.net.request_log import logged
from asr_server.processes.caller_work import current_caller

_POLICY = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self' ws: wss:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# The script library of the API's page sets inline styles.
_DOCS_POLICY = _POLICY + "; style-src 'self' 'unsafe-inline'"
# The headers that a page of another origin may read.
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "server-timing",
    "content-disposition",
    "x-audio-duration",
    "x-subtitle-timing",
    "x-untranslated",
    "x-translation-error",
    "location",
)
# Anybody may load the web page and the API's page, to enter a key there. They hold no data.
_PAGE = "/web/"
_DOCS_LIBRARY = "/static-offline-docs/"
# The page requests it every few seconds, which must not use up the caller's quota.
_HEALTH = "/health"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_WAYS = "send it as 'Authorization: Bearer KEY'; commands take it from ASR_API_KEY or --api-key-file FILE"
_REALTIME = "/v1/realtime"
_RESUMABLE = "/ws/transcribe"
_LIVE = frozenset({_REALTIME, _RESUMABLE, "/ws/speech", "/v1/listen"})
_SUBSCRIBER_BITS = 64
# Groq's clients request OpenAI's paths below `/openai`.
_OPENAI, _GROQ = "/openai", "/openai/v1/"


class Edge:
    """ASGI middleware with the steps of this module."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules
        self._cors = CORSMiddleware(
            self._enter,
            allow_origins=sorted(rules.origins.allowed),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=_EXPOSED,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and scope["path"].startswith(_GROQ):
            raw = scope.get("raw_path") or b""
            scope = {
                **scope,
                "path": scope["path"].removeprefix(_OPENAI),
                "raw_path": raw.removeprefix(_OPENAI.encode()),
            }
        if scope["type"] == "http":
            with logged(scope, send) as send_logged:
                served = scope
                if scope["method"] == "HEAD":
                    served, receive, send_logged = _as_get(scope, send_logged)
                try:
                    await self._cors(served, receive, _with_browser_headers(served, send_logged))
                finally:
                    scope["route"] = served.get("route")  # for the log
        elif scope["type"] == "websocket":
            await self._enter(scope, receive, _with_browser_headers(scope, send))
        else:
            await self._app(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check access and pass the request on. Answer an unexpected error with status 500.

        Once a response has begun, an error cuts the connection instead: the caller must not mistake half a response for
        a whole one.
        """
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if scope["type"] == "http" and scope["path"] in PROBES:
                await self._app(scope, receive, send_and_note)
            else:
                await self._check_access(scope, receive, send_and_note)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            logger.opt(exception=error).error("unexpected error", id=scope["state"]["id"])
            await http_response(INTERNAL)(scope, receive, send)

    async def _check_access(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or reject it with the response of a domain error."""
        connection, times = HTTPConnection(scope), loop_time()
        with ExitStack() as held:
            try:
                place = held.enter_context(self._admit(connection))
                caller = scope.setdefault("state", {}).get("caller")
                share = caller.share if caller is not None else _address(connection)
                current_caller.set(share)
                if scope["type"] == "websocket":
                    receive = await _in_turn(times.handshake(share), receive, held)
            except Cancelled:
                await send({"type": "websocket.close"})  # nobody reads it, but uvicorn wants every handshake answered
                return
            except AsrError as error:
                # A caller that is refused again and again waits here, and uses only its share of the loop.
                await times.charged(f"refused {_address(connection)}", REFUSAL_S)
                await _reject(scope, receive, send, error)
                return
            scope["state"]["place"] = place
            if place is not None and scope["type"] == "http":
                held.enter_context(times.working(times.of(share)))
            # GET and HEAD use loop time only, and the caller has a share of that. Other requests wait in the engine's
            # queue, and their refusals are sent at a limited rate.
            is_short = scope.get("method") in _SAFE_METHODS

            async def send_and_release(message: Message) -> None:
                if not is_short and message["type"] == "http.response.start" and 400 <= message["status"] < 500:
                    await times.charged(share, REFUSAL_S)
                # Sending the end of a response returns only when all of it is written, so an unread response keeps its
                # slot. The slot is free before the event loop can receive the caller's next request.
                await send(message)
                if _ends(message):
                    held.close()

            async def answer() -> None:
                await self._app(scope, receive, send_and_release)

            if self._is_open(scope):
                # Many readers may share an address, and their streams last long. Each request is charged once, and the
                # route limits their number. Readers use up no share of a speaker at the same address.
                await times.charged(f"open {share}", REFUSAL_S)
                await answer()
                return
            await (times.counted(share, answer()) if is_short else answer())

    def _admit(self, connection: HTTPConnection) -> AbstractContextManager[Place | None]:
        """Check access and take a slot of the caller's quota. Raises the error for the caller."""
        scope, headers = connection.scope, connection.headers
        self._rules.origins.check_host(headers.get("host"))
        if scope.get("method") not in _SAFE_METHODS:
            self._rules.origins.check_origin(headers.get("origin"), headers.get("host"))
        if _is_page(scope) or self._is_open(scope):
            return nullcontext()
        state = scope.setdefault("state", {})
        caller = self._caller(connection)
        state["caller"] = caller = replace(caller, share=caller.owner or _address(connection))
        if caller.owner:
            state.setdefault("log", {})["key"] = fingerprint(caller.owner)
        if scope["path"] == _HEALTH:
            return nullcontext()
        is_live = scope["type"] == "websocket" and scope["path"] in _LIVE
        # Other live sockets have no sessions to resume, so they always count as new ones.
        resumes = connection.query_params.get("session_id", "") if is_live and scope["path"] == _RESUMABLE else ""
        return self._rules.quota.taken(caller.share, live=is_live, resumes=resumes)

    def _is_open(self, scope: Scope) -> bool:
        return scope.get("method") in _SAFE_METHODS and scope["path"].startswith(self._rules.open_paths)

    def _caller(self, connection: HTTPConnection) -> Caller:
        key = presented(connection)
        is_realtime = (connection.scope["type"], connection.scope["path"]) == ("websocket", _REALTIME)
        if is_realtime and key and key.startswith(EPHEMERAL):
            return self._rules.ephemeral_keys.open(key)
        if not self._rules.api_keys:
            return Caller()
        if key is None:
            raise InvalidInput(f"This server needs an API key: {_WAYS}.", code="missing_api_key")
        owner = self._rules.api_keys.owner(key)
        if owner is None:
            raise InvalidInput(f"Incorrect API key provided: {_WAYS}.", code="invalid_api_key")
        return Caller(owner)


async def _in_turn(turn: Coroutine[Any, Any, None], receive: Receive, held: ExitStack) -> Receive:
    """Wait for the turn of a handshake. Return a `receive` that yields all messages of the socket.

    Raises `Cancelled` if the client leaves first: a client that comes back would otherwise find its turns taken by the
    connections it has left. The last `receive` may still be pending, and cancelling it could lose a message. The
    route's first call awaits it, or `held` cancels it if there is no such call.
    """
    received = deque[asyncio.Future[Any]]()
    held.callback(lambda: [message.cancel() for message in received])
    waiting: asyncio.Future[Any] = asyncio.ensure_future(turn)
    try:
        await asyncio.sleep(0)  # most handshakes need not wait
        while not waiting.done():
            received.append(asyncio.ensure_future(receive()))
            await asyncio.wait({waiting, received[-1]}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and received[-1].result()["type"] == "websocket.disconnect":
                raise Cancelled()
        await waiting
    finally:
        waiting.cancel()

    async def receive_all() -> Message:
        return await (received.popleft() if received else receive())

    return receive_all


def _as_get(scope: Scope, send: Send) -> tuple[Scope, Receive, Send]:
    """Return a `HEAD` request as a `GET` whose client leaves as soon as the head of the response is sent."""
    begun = asyncio.Event()

    async def send_head(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})
            begun.set()

    async def receive_end() -> Message:
        await begun.wait()  # ends a stream of events, which does not end by itself
        return {"type": "http.disconnect"}

    # From version 2.4 on Starlette expects `send` to raise when the client is gone, and does not call `receive`.
    asgi = {**scope.get("asgi", {}), "spec_version": "2.3"}
    return {**scope, "asgi": asgi, "method": "GET"}, receive_end, send_head


def _with_browser_headers(scope: Scope, send: Send) -> Send:
    """Return a `send` that adds the security headers that the route has not set."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = MutableHeaders(scope=message)
            headers.setdefault("X-Content-Type-Options", "nosniff")
            headers.setdefault("Referrer-Policy", "no-referrer")
            # Pages of ALLOWED_ORIGINS use CORS, which this does not affect.
            headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
            headers.setdefault("Content-Security-Policy", _DOCS_POLICY if scope["path"] == web.DOCS_PATH else _POLICY)
        await send(message)

    return send_with_headers


async def _reject(scope: Scope, receive: Receive, send: Send, error: AsrError) -> None:
    if scope["type"] == "http":
        scope["state"]["outcome"] = error.code
        await http_response(error)(scope, receive, send)
        return
    logger.info("socket refused", code=error.code, reason=error.message)
    socket = WebSocket(scope, receive, send)
    websocket_io.count_error(socket, error)
    await websocket_io.reject_websocket(socket, error)


def _ends(message: Message) -> bool:
    kind: str = message["type"]
    return kind == "websocket.close" or (kind.endswith("http.response.body") and not message.get("more_body"))


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    method = scope.get("method")
    if path == "/" and method == "OPTIONS":  # load balancers send this to check that the server is up
        return True
    page = path in ("/", web.DOCS_PATH, web.CAPTIONS_PATH) or path.startswith(_DOCS_LIBRARY)
    page = page or (path.startswith(_PAGE) and web.name_in(path.removeprefix(_PAGE)) != "")
    return method in _SAFE_METHODS and page


def _address(connection: HTTPConnection) -> str:
    """Return the name of a caller without a key: its IPv4 address, or the IPv6 network of its subscriber."""
    host = connection.client.host if connection.client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped:
        return host
    return str(ip_network((address.packed, _SUBSCRIBER_BITS), strict=False))
