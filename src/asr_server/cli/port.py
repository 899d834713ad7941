"""Whether an address can be listened on, tried for a moment. Holds nothing."""

from __future__ import annotations

import errno
import socket
from typing import Any


def refusal(host: str, port: int) -> str:
    """Why a server could not listen there now, in the system's words; "" where it could. Port 0 stands for any."""
    reason = ""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            reason = _tried(family, kind, address)
            if not reason:
                return ""
    except OSError as error:
        return error.strerror or str(error)
    return reason


def _tried(family: int, kind: int, address: Any) -> str:
    """Bind it as asyncio's servers do. Returns why not where this machine has no such address, which is no matter if
    the name has others; raises OSError for every other reason."""
    with socket.socket(family, kind) as probe:
        # Or a port that was given up a moment ago would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return error.strerror or str(error)
            raise
    return ""
