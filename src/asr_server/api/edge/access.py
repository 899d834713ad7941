"""The door: every request and every socket is checked here, before its route. Pure ASGI; decides by rules it is given.

In order: the name the server was called by, the page that calls, the key, the caller's share. What passes carries a
`Caller` in its state. A new route is behind the door without doing anything for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address, ip_network
from typing import TYPE_CHECKING

from loguru import logger
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from asr_server.api import errors as error_table
from asr_server.api.edge import credentials, reject
from asr_server.api.edge.origins import Origins
from asr_server.api.metrics.labels import Transport
from asr_server.core.api_keys import ApiKeys, fingerprint
from asr_server.core.errors import AsrError, InvalidKey, MissingKey
from asr_server.core.settings import Settings, is_loopback
from asr_server.scheduling.quota import Quota

if TYPE_CHECKING:
    from asr_server.api.realtime.ephemeral_keys import EphemeralKey

# Probes come from machines that have no key, and the page must load so that one can be entered. No data is there.
PROBES = frozenset({"/livez", "/readyz"})
_PAGE, _PAGE_FILES = "/", "/web/"
# The page asks for it every few seconds, which must not use up what its user may ask for.
_STATE = "/health"
_READING = frozenset({"GET", "HEAD"})
_REALTIME = "/v1/realtime"
_SUBSCRIBER_BITS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """Who passed. `owner`: whose the jobs and sessions are, "" where there are no keys. `session_key`: an ephemeral
    one that opened this realtime session."""

    owner: str = ""
    session_key: EphemeralKey | None = None


@dataclass(frozen=True, slots=True)
class AccessRules:
    """What the door goes by. `session_key`: who holds this ephemeral key; raises `InvalidKey`."""

    api_keys: ApiKeys
    session_key: Callable[[str], Caller]
    origins: Origins
    quota: Quota

    @classmethod
    def of(cls, settings: Settings, session_key: Callable[[str], Caller]) -> AccessRules:
        """Those that the settings ask for."""
        api_keys = ApiKeys(settings.keys)
        origins = Origins(settings.origins, keyless=not api_keys, loopback=is_loopback(settings.host))
        return cls(api_keys, session_key, origins, Quota(settings.key_max_requests, settings.key_rate))


class Access:
    """ASGI: refuses with a domain error's answer, or lets through."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then pass on."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in PROBES):
            await self._app(scope, receive, send)
            return
        with ExitStack() as held:
            try:
                held.enter_context(self._admit(HTTPConnection(scope)))
            except AsrError as error:
                await _refuse(scope, receive, send, error)
                return

            async def give_back_at_the_end(message: Message) -> None:
                # Before the caller sees the end of its answer: it may ask again at once.
                if _ends(message):
                    held.close()
                await send(message)

            await self._app(scope, receive, give_back_at_the_end)

    def _admit(self, connection: HTTPConnection) -> AbstractContextManager[None]:
        """The caller's place. Raises what it is refused with."""
        scope, headers = connection.scope, connection.headers
        self._rules.origins.check_host(headers.get("host"))
        if scope.get("method") not in _READING:
            self._rules.origins.check_origin(headers.get("origin"), headers.get("host"))
        if _is_page(scope):
            return nullcontext()
        state = scope.setdefault("state", {})
        state["caller"] = caller = self._caller(connection)
        if caller.owner:
            state.setdefault("log", {})["key"] = fingerprint(caller.owner)
        if scope["path"] == _STATE:
            return nullcontext()
        return self._rules.quota.taken(caller.owner or _address(connection))

    def _caller(self, connection: HTTPConnection) -> Caller:
        presented = credentials.presented(connection)
        if presented and presented.startswith(credentials.EPHEMERAL) and _is_realtime_socket(connection.scope):
            return self._rules.session_key(presented)
        if not self._rules.api_keys:
            return Caller()
        if presented is None:
            raise MissingKey("You didn't provide an API key: send it as 'Authorization: Bearer KEY'.")
        owner = self._rules.api_keys.owner(presented)
        if owner is None:
            raise InvalidKey("Incorrect API key provided.")
        return Caller(owner)


async def _refuse(scope: Scope, receive: Receive, send: Send, error: AsrError) -> None:
    if scope["type"] == "http":
        scope["state"]["outcome"] = error.code
        await error_table.respond(error)(scope, receive, send)
        return
    logger.info("socket refused", code=error.code)
    if (services := getattr(scope["app"].state, "services", None)) is not None:  # a gateway counts nothing
        services.meters.http.error(Transport.SOCKET, error.code)
    await reject.reject_websocket(WebSocket(scope, receive, send), error)


def _ends(message: Message) -> bool:
    kind: str = message["type"]
    return kind == "websocket.close" or (kind.endswith("http.response.body") and not message.get("more_body"))


def _is_page(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope.get("method") in _READING and (path == _PAGE or path.startswith(_PAGE_FILES))


def _is_realtime_socket(scope: Scope) -> bool:
    return (scope["type"], scope["path"]) == ("websocket", _REALTIME)


def _address(connection: HTTPConnection) -> str:
    """Who shares a limit where there are no keys: an IPv4 address, or a whole IPv6 network of one subscriber."""
    host = connection.client.host if connection.client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv4Address) or address.ipv4_mapped:
        return host
    return str(ip_network((address.packed, _SUBSCRIBER_BITS), strict=False))
