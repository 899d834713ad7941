"""A test before anything is built that a server could listen with these settings: address and TLS certificate."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

from asr_server.core.settings import Settings


def address_error(host: str, port: int) -> str:
    """Return why a server cannot listen there now, in the system's words; "" where it can. Port 0 stands for any
    port."""
    reason = ""
    try:
        for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            reason = _bind(family, kind, address)
            if not reason:
                return ""
    except OSError as error:
        return error.strerror or str(error)
    return reason


def certificate_error(settings: Settings) -> str:
    """Return why TLS cannot be served with the certificate and key of the settings; "" where it can, and without
    TLS."""
    if not settings.ssl_certfile:
        return ""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None, _passphrase)
    except ssl.SSLError as error:
        return f"no PEM certificate and key that belong together: {error}"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _bind(family: int, kind: int, address: Any) -> str:
    """Bind the address as asyncio's servers do. Returns an error only where this machine does not have the address,
    since a name may have others that it has. Raises OSError for every other reason."""
    with socket.socket(family, kind) as probe:
        # Otherwise a port that was closed a moment ago would count as in use.
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


def _passphrase() -> str:
    """Raise an error, since OpenSSL would ask for the passphrase on the terminal otherwise."""
    raise ValueError("the key is locked with a passphrase")
