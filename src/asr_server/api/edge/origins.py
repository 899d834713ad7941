"""Which web pages may call, and by which names: pure rules over the headers `Origin` and `Host`. Not who calls."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from asr_server.core.errors import ForeignHost, ForeignOrigin

_ANY = "*"
_BARE_NAME = re.compile(r"[\w-]+")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """`allowed`: origins in lower case, or `*`.

    `keyless`: nobody needs a key, so a page that makes its own name point here must not get in (DNS rebinding).
    `loopback`: only this machine can connect, so no name but its own is a right one.
    """

    allowed: frozenset[str]
    keyless: bool = False
    loopback: bool = False

    def check_origin(self, origin: str | None, host: str | None) -> None:
        """For what changes or costs something: a page of another site must be allowed. Raises `ForeignOrigin`.

        No origin at all is no browser. `host` is the name the page was loaded from if the page is our own.
        """
        if origin is None or _ANY in self.allowed or origin.lower() in self.allowed:
            return
        if host is None or not _same(origin.lower(), host.lower()):
            raise ForeignOrigin("Web pages of this origin may not call: ALLOWED_ORIGINS does not name it.")

    def check_host(self, host: str | None) -> None:
        """Raises `ForeignHost` for a name that somebody else's DNS may have made to point here."""
        if not self.keyless or host is None or _ANY in self.allowed:
            return
        name = _name(host)
        if not (_is_address(name) or self._is_own(name) or name in map(_name_of_origin, self.allowed)):
            raise ForeignHost(
                "A server without keys answers to addresses and localhost only; ALLOWED_ORIGINS can add a name."
            )

    def _is_own(self, name: str) -> bool:
        """`localhost` and below. Names without a dot are those of a local network: no stranger can own one."""
        return (
            name == "localhost"
            or name.endswith(".localhost")
            or (not self.loopback and _BARE_NAME.fullmatch(name) is not None)
        )


def _same(origin: str, host: str) -> bool:
    scheme, _, place = origin.partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return port is not None and place != "" and place.removesuffix(port) == host.removesuffix(port)


def _name(host: str) -> str:
    """The host without its port, in lower case; "" for what is none."""
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
