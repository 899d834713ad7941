"""Access rules, the caller of a request, and the refusal of a WebSocket. `net.edge` applies the rules."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.websockets import WebSocket

from asr_server.core.errors import TABLE, AsrError, InvalidInput
from asr_server.net import credentials, websocket_io
from asr_server.net.credentials import ApiKeys, EphemeralKeys
from asr_server.net.errors import http_response, realtime_error
from asr_server.schedule.quota import Quota

if TYPE_CHECKING:
    from asr_server.core.settings import Settings

_ANY = "*"
_BARE_NAME = re.compile(r"[\w-]+")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?")
_PRIVATE = (".internal", ".local", ".home.arpa", ".lan", ".home", ".localdomain", ".fritz.box")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """The web pages that may call (by `Origin`) and the host names that they may use (by `Host`)."""

    allowed: frozenset[str]  # origins in lower case, or `*`
    keyless: bool = False  # no key is needed, so host names are checked against DNS rebinding
    loopback: bool = False  # the server listens on a loopback address, so only local names are accepted

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """Check a request that changes or costs something. Raises `origin_not_allowed` for a page of another site.

        A request without an origin does not come from a browser. `host`: the request's host, which is the origin of the
        server's own page.
        """
        if origin is None or _ANY in self.allowed or origin.lower() in self.allowed:
            return
        if host is None or not _same_site(origin.lower(), host.lower()):
            raise InvalidInput(
                "Web pages of this origin may not call: ALLOWED_ORIGINS does not name it.", code="origin_not_allowed"
            )

    def check_host(self, host: str | None) -> None:
        """Raise `host_not_allowed` for a name that a stranger's DNS may resolve to this server."""
        if not self.keyless or host is None or _ANY in self.allowed:
            return
        name, own_origins = _name(host), {_name(origin.partition("://")[2]) for origin in self.allowed}
        if not (_is_address(name) or self._is_own(name) or name in own_origins):
            raise InvalidInput(
                "A server without keys answers to addresses and to names that no stranger can register only."
                + (f" To add this one, set ALLOWED_ORIGINS=http://{host.lower()}" if _HOST.fullmatch(host) else ""),
                code="host_not_allowed",
            )

    def _is_own(self, name: str) -> bool:
        """Return True for a name that no stranger can register.

        These are `localhost` and its subdomains. If other machines can connect, also names without a dot and names of
        private networks: RFC 6762, RFC 8375, ICANN's `.internal`, the names that routers give and ICANN does not
        delegate (`.home`; SSAC's SAC 113), and AVM's `fritz.box`.
        """
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


# Probes have no key, and their responses hold no data.
PROBES = frozenset({"/livez", "/readyz"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request."""

    owner: str = ""  # the owner of its jobs and sessions, "" without keys
    session: Mapping[str, Any] | None = None  # the realtime session in the ephemeral key, None for other keys
    share: str = ""  # the name by which quotas count it: the owner, or an address without keys


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The access rules of a server."""

    api_keys: ApiKeys
    ephemeral_keys: EphemeralKeys
    origins: Origins
    quota: Quota
    open_paths: tuple[str, ...] = ()  # prefixes of paths that are read without a key: their routes check a token

    @classmethod
    def of(cls, settings: Settings, open_paths: tuple[str, ...] = ()) -> AccessRules:
        api_keys = ApiKeys(settings.keys)
        origins = Origins(settings.origins, keyless=not api_keys, loopback=settings.is_local)
        quota = Quota(settings.key_max_requests, settings.key_rate, max_live=settings.max_live_sessions)
        return cls(api_keys, EphemeralKeys(settings.keys), origins, quota, open_paths)


async def reject_websocket(socket: WebSocket, error: AsrError) -> None:
    """Refuse the handshake with an HTTP status.

    A browser cannot see that status. If it sent a key, the socket is accepted, sent the error as a realtime event, and
    closed. A page of a foreign origin gets the status only: its socket never opens.
    """
    if error.code in ("origin_not_allowed", "host_not_allowed") or credentials.by_subprotocol(socket) is None:
        await socket.send_denial_response(http_response(error))
        return
    await socket.accept(subprotocol=credentials.realtime_subprotocol(socket))
    event = {"type": "error", "event_id": f"event_{secrets.token_hex(6)}", "error": realtime_error(error)}
    mapping = TABLE[error.code]
    await websocket_io.close(socket, mapping.ws_close, f"{mapping.type}.{error.code}", event)
