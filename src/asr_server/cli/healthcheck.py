"""`asr-server healthcheck`: asks the server on this machine whether it is live, for container engines."""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
from ipaddress import ip_address

from asr_server.core import settings as settings_module
from asr_server.core.settings import Settings

_TIMEOUT_S = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=lambda _: healthcheck(settings_module.load()))


def healthcheck(settings: Settings) -> int:
    """Return 0 if `/livez` answers with 200, 1 otherwise."""
    host = connectable(settings.host)
    connection = http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
    if settings.ssl_certfile:
        # The certificate is for another name than this address, and nothing secret is sent.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, settings.port, timeout=_TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/livez")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        address = f"{settings.host}:{settings.port} (HOST, PORT)"
        print(f"asr-server healthcheck: no server answers at {address}: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    return 0 if status == http.client.OK else 1


def connectable(host: str) -> str:
    """Return the address at which to reach a server that listens on `host`, which may stand for all addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
