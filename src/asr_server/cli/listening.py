"""Tests, before the app is built, whether a server could listen with these settings: address and TLS certificate."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from asr_server.core.settings import Settings


def address_error(host: str, port: int) -> str:
    """Return why a server cannot listen there now, in the system's words; "" if it can. Port 0 stands for any port."""
    reason = ""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                socket.create_server(address, family=family).close()
                return ""
            except OSError as error:
                reason = os.strerror(error.errno or errno.EINVAL)
                if error.errno != errno.EADDRNOTAVAIL:  # otherwise another address of the name may be this machine's
                    break
    except OSError as error:
        return error.strerror or str(error)
    return reason


def certificate_error(settings: Settings) -> str:
    """Return why TLS cannot be served with the certificate and key of the settings; "" if it can, and without TLS."""
    if not settings.tls_files:
        return ""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_files[0], settings.tls_files[-1], _passphrase)
    except ssl.SSLError as error:
        return f"no PEM certificate and key that belong together: {error}"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _passphrase() -> str:
    """Raise an error: otherwise OpenSSL would ask for the passphrase on the terminal."""
    raise ValueError("the key is locked with a passphrase")
