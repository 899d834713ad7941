"""Access control: ASGI middleware that checks every request and every socket before its route, and its rules.

It checks, in this order, the name that the server was called by, the page that calls, the key, and the caller's quota.
A request that passes carries a `Caller` in its state. A new route is protected without doing anything for it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from loguru import logger
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from asr_server import web
from asr_server.core.errors import AsrError, ForeignHost, ForeignOrigin, InvalidKey, MissingKey
from asr_server.core.settings import Settings, is_loopback
from asr_server.net import credentials, websocket_io
from asr_server.net.credentials import ApiKeys, EphemeralKeys, fingerprint
from asr_server.net.errors import TABLE, http_response, realtime_error
from asr_server.net.loop_time import loop_time
from asr_server.schedule.quota import Place, Quota

_ANY = "*"
_BARE_NAME = re.compile(r"[\w-]+")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?")
_PRIVATE = (".internal", ".local", ".home.arpa")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """Decide by the headers `Origin` and `Host` which web pages may call, and under which host names."""

    allowed: frozenset[str]  # origins in lower case, or `*`
    # no key is needed: a page whose host name resolves to this server is rejected (DNS rebinding)
    keyless: bool = False
    loopback: bool = False  # the server listens on a loopback address, so only local names are accepted

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Check a request that changes or costs something. Raises `ForeignOrigin` for a page of another site.

        A request without an origin does not come from a browser. `host`: the host that the request names; the
        server's own page has it as its origin.
        """
        if origin is None or _ANY in self.allowed or origin.lower() in self.allowed:
            return
        if host is None or not _same_site(origin.lower(), host.lower()):
            raise ForeignOrigin("Web pages of this origin may not call: ALLOWED_ORIGINS does not name it.")

    def check_host(self, host: str | None) -> None:
        """Raise `ForeignHost` for a name that somebody else's DNS may have made to resolve to this server."""
        if not self.keyless or host is None or _ANY in self.allowed:
            return
        name, own_origins = _name(host), {_name(origin.partition("://")[2]) for origin in self.allowed}
        if not (_is_address(name) or self._is_own(name) or name in own_origins):
            raise ForeignHost(
                "A server without keys answers to addresses and to names that no stranger can register only."
                + (f" To add this one, set ALLOWED_ORIGINS=http://{host.lower()}" if _HOST.fullmatch(host) else "")
            )

    def _is_own(self, name: str) -> bool:
        """Return True for `localhost` and its subdomains; where other machines can connect, also for names without a
        dot and those of private networks, which nobody else can register (RFC 6762, RFC 8375, ICANN's `.internal`)."""
        if name in ("localhost", "host.docker.internal") or name.endswith(".localhost"):
            return True
        return not self.loopback and (_BARE_NAME.fullmatch(name) is not None or name.endswith(_PRIVATE))


def _same_site(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and place != "" and place.removesuffix(port) == host.removesuffix(port)


def _name(host: str) -> str:
    """Return the host name without its port, in lower case; "" if it is malformed."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    return ""


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ip_address(name)
        return True
    return False


# Probes come from machines without a key, and the page must load so that a key can be entered. Neither holds data.
PROBES = frozenset({"/livez", "/readyz"})
_PAGE = "/web/"
# The page asks for it every few seconds, which must not use up its user's quota.
_HEALTH = "/health"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_REALTIME = "/v1/realtime"
_RESUMABLE = "/ws/transcribe"
_LIVE = frozenset({_REALTIME, _RESUMABLE, "/ws/speech"})
_SUBSCRIBER_BITS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    owner: str = ""  # the owner of its jobs and sessions, "" where there are no keys
    session: Mapping[str, Any] | None = None  # the realtime session in the ephemeral key, None for other keys
    share: str = ""  # the name by which fair schedulers count it: the owner, or an address where there are no keys


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules by which access is decided."""

    api_keys: ApiKeys
    ephemeral_keys: EphemeralKeys
    origins: Origins
    quota: Quota

    @classmethod
    def of(cls, settings: Settings) -> AccessRules:
        """Return the rules that the settings ask for."""
        api_keys = ApiKeys(settings.keys)
        origins = Origins(settings.origins, keyless=not api_keys, loopback=is_loopback(settings.host))
        quota = Quota(settings.key_max_requests, settings.key_rate, max_live=settings.max_live_sessions)
        return cls(api_keys, EphemeralKeys(settings.keys), origins, quota)


class AccessControl:
    """ASGI middleware: rejects with the response of a domain error, or passes the request on."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in PROBES):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        with ExitStack() as held:
            try:
                place = held.enter_context(self._admit(connection))
            except AsrError as error:
                # Whoever is refused again and again waits here, and takes no more of the loop than its share.
                await loop_time().refusal(_address(connection))
                await _reject(scope, receive, send, error)
                return
            scope.setdefault("state", {})["place"] = place
            if place is not None and scope["type"] == "http":
                times = loop_time()
                held.enter_context(times.working(times.of(scope["state"]["caller"].share)))

            async def send_and_release(message: Message) -> None:
                # The end of a response is sent when all of it is written, so one that nobody reads keeps its place. The
                # place is free again before the event loop can receive the caller's next request.
                await send(message)
                if _ends(message):
                    held.close()

            await self._app(scope, receive, send_and_release)

    def _admit(self, connection: HTTPConnection) -> AbstractContextManager[Place | None]:
        """Check everything and take a place of the caller's quota. Raises the error for the caller."""
        scope, headers = connection.scope, connection.headers
        self._rules.origins.check_host(headers.get("host"))
        if scope.get("method") not in _SAFE_METHODS:
            self._rules.origins.check_origin(headers.get("origin"), headers.get("host"))
        if _is_page(scope):
            return nullcontext()
        state = scope.setdefault("state", {})
        caller = self._caller(connection)
        state["caller"] = caller = replace(caller, share=caller.owner or _address(connection))
        if caller.owner:
            state.setdefault("log", {})["key"] = fingerprint(caller.owner)
        if scope["path"] == _HEALTH:
            return nullcontext()
        is_live = scope["type"] == "websocket" and scope["path"] in _LIVE
        # Other live sockets have no session that could be resumed: one that names a session counts as a new one.
        resumes = connection.query_params.get("session_id", "") if is_live and scope["path"] == _RESUMABLE else ""
        return self._rules.quota.taken(caller.share, live=is_live, resumes=resumes)

    def _caller(self, connection: HTTPConnection) -> Caller:
        presented = credentials.presented(connection)
        is_realtime = (connection.scope["type"], connection.scope["path"]) == ("websocket", _REALTIME)
        if is_realtime and presented and presented.startswith(credentials.EPHEMERAL):
            opened = self._rules.ephemeral_keys.open(presented)
            return Caller(opened.owner, opened.session)
        if not self._rules.api_keys:
            return Caller()
        if presented is None:
            raise MissingKey("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.")
        owner = self._rules.api_keys.owner(presented)
        if owner is None:
            raise InvalidKey("Incorrect API key provided.")
        return Caller(owner)


async def _reject(scope: Scope, receive: Receive, send: Send, error: AsrError) -> None:
    if scope["type"] == "http":
        scope["state"]["outcome"] = error.code
        await http_response(error)(scope, receive, send)
        return
    logger.info("socket refused", code=error.code, reason=error.message)
    socket = WebSocket(scope, receive, send)
    websocket_io.count_error(socket, error)
    await reject_websocket(socket, error)


async def reject_websocket(socket: WebSocket, error: AsrError) -> None:
    """Refuse the handshake with an HTTP status.

    A browser cannot see that status. One that showed a key is accepted, told the error as a realtime event, and closed.
    A page that may not call at all is told nothing: its socket never opens.
    """
    if isinstance(error, ForeignOrigin | ForeignHost) or credentials.by_subprotocol(socket) is None:
        await socket.send_denial_response(http_response(error))
        return
    await socket.accept(subprotocol=credentials.realtime_subprotocol(socket))
    event = {"type": "error", "event_id": f"event_{secrets.token_hex(6)}", "error": realtime_error(error)}
    mapping = TABLE[error.code]
    await websocket_io.close(socket, mapping.ws_close, f"{mapping.type}.{error.code}", event)


def _ends(message: Message) -> bool:
    kind: str = message["type"]
    return kind == "websocket.close" or (kind.endswith("http.response.body") and not message.get("more_body"))


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    method = scope.get("method")
    if path == "/" and method == "OPTIONS":  # load balancers ask for it to see whether the server is there
        return True
    page = path == "/" or (path.startswith(_PAGE) and web.name_in(path.removeprefix(_PAGE)) != "")
    return method in _SAFE_METHODS and page


def _address(connection: HTTPConnection) -> str:
    """Return the name of a caller without a key: an IPv4 address, or the IPv6 network of one subscriber."""
    host = connection.client.host if connection.client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped:
        return host
    return str(ip_network((address.packed, _SUBSCRIBER_BITS), strict=False))
