"""The meaning of an address to listen on."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """True if only this machine can connect to a server that listens there."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"
