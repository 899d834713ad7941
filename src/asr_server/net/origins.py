"""Decides by the headers `Origin` and `Host` which web pages may call, and under which host names."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from asr_server.core.errors import ForeignHost, ForeignOrigin

_ANY = "*"
_BARE_NAME = re.compile(r"[\w-]+")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?")
_PRIVATE = (".internal", ".local", ".home.arpa")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """The rules of one server."""

    allowed: frozenset[str]  # origins in lower case, or `*`
    keyless: bool = (
        False  # no key is needed: a page whose host name resolves to this server is rejected (DNS rebinding)
    )
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
        name = _name(host)
        if not (_is_address(name) or self._is_own(name) or name in map(_name_of_origin, self.allowed)):
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


def _name_of_origin(origin: str) -> str:
    return _name(origin.partition("://")[2])


def _is_address(name: str) -> bool:
    with suppress(ValueError):
        ip_address(name)
        return True
    return False
