"""The program of one of several processes that serve a port, or of the one that has their jobs. Servers start it; users
do not."""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path

from asr_server import app as server_app
from asr_server.cli import serve
from asr_server.core import settings as settings_module
from asr_server.features import front_ends
from asr_server.features.front_ends import front_end
from asr_server.features.front_ends.ledger import Ledger
from asr_server.features.gateway.child import end_with_gateway

# For requests that have arrived to begin, and for those that take less to end.
_SETTLE_S = 1.0


def main() -> int:
    """Run it until the server ends, or sends SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, required=True, help="number of the process")
    parser.add_argument("--ledger", type=Path, required=True, help="database that the processes share")
    parser.add_argument("--socket", type=int, required=True, help="open descriptor of the socket for the others")
    parser.add_argument("--public", type=int, nargs="*", default=[], help="open descriptors of those for callers")
    given = parser.parse_args()
    settings = settings_module.load()
    serve.configure_logging(settings)
    end_with_gateway()
    ledger = Ledger(given.ledger, given.number)
    own = given.ledger.parent / str(given.number)
    front_ends.here = here = front_end.Here(ledger, has_jobs=not given.public, directory=own)
    app = server_app.create_app(settings)
    callers = [socket.socket(fileno=fd) for fd in given.public]

    telling: list[asyncio.Task[None]] = []

    async def begin() -> None:
        telling.append(asyncio.create_task(front_end.tell(app, ledger)))

    async def drain() -> None:
        # First, so that whoever calls from now on, or goes on over a connection that is kept, comes to the process that
        # replaces this one: it is at the same socket. What is on its way already is begun before anything is refused.
        assert isinstance(server, serve.Server)
        for listening in server.servers[: len(callers)]:
            listening.close()
        ledger.leave()
        await server.end_kept_connections(_SETTLE_S)
        await relay.drain()
        await server_app.drain(app)
        telling[0].cancel()

    tls = {"ssl_certfile": settings.ssl_certfile or None, "ssl_keyfile": settings.ssl_keyfile or None}
    relay = front_end.with_siblings(app, settings, here)
    server = serve.http_server(relay, drain, tls)
    assert isinstance(server, serve.Server)
    server.plain, server.begin = socket.socket(fileno=given.socket), begin
    return serve.serve_app(server, callers)


if __name__ == "__main__":
    raise SystemExit(main())
