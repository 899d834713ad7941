"""The app under Granian: HTTP and WebSocket run in Rust, and the app on one event loop as with uvicorn.

Settings of Granian and of the kernel enforce the limits of `http_protocol.py` and `socket_protocol.py` here, as far as
they can: docs/run/deployment.md lists the differences. Granian gets sockets that are already bound.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

# The largest head of a request; the longest time for it, and between two requests of a connection.
_HEAD_BYTES, _HEAD_S = 64 * 1024, 75.0
# Connections that wait to be accepted, and that are open at once.
_BACKLOG, _CONNECTIONS = 2048, 16_384
# A peer that is gone, or leaves data unread for this long, is disconnected. Accepted sockets inherit the option.
_PROBE_AFTER_S, _PROBE_EVERY_S, _UNREAD_S = 20, 5, 180
_UNSENT_BYTES = 128 * 1024


class GranianServer(uvicorn.Server):
    """uvicorn's server with its configuration, lifespan and signals, but with Granian's connections."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:  # it has failed
            self.should_exit = True
            return
        listener = sockets[0] if sockets else _bound(self.config.host, self.config.port)
        self.servers = [SimpleNamespace(sockets=[listener])]  # type: ignore[list-item]  # where uvicorn's has them
        self._active = set[asyncio.Task[Any]]()
        self._granian = _embedded(self._handle, self.config, listener)
        self._serving = asyncio.create_task(self._granian.serve())
        self.started = True
        logging.getLogger("granian").info("Granian listens on %s", listener.getsockname() or "a Unix socket")

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._serving.done()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._granian.stop()
        await self._serving
        if self._active:
            await asyncio.wait(self._active, timeout=self.config.timeout_graceful_shutdown)
        await self.lifespan.shutdown()
        self._granian.listener.close()

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the app for a request or a WebSocket, counted while it works."""
        task, pending = asyncio.current_task(), None
        assert task is not None
        self._active.add(task)

        async def message() -> Any:
            # If a call is cancelled, Granian loses its message, and the next call reports that the client has left. So
            # the call runs on, and the next one gets its message.
            nonlocal pending
            pending = pending or asyncio.ensure_future(receive())
            found = await asyncio.shield(pending)
            pending = None
            return found

        try:
            # Not for a WebSocket: Granian does not send its close frame while a call is in progress.
            await self.config.loaded_app(scope, message if scope["type"] == "http" else receive, send)
        finally:
            if pending is not None:
                pending.cancel()
            self._active.discard(task)


class _Embedded(Server):  # type: ignore[misc]  # the library has no types
    """Granian's server in this process and on this event loop, on a socket of ours."""

    listener: socket.socket

    def _init_shared_socket(self) -> None:
        # Granian closes the descriptor that it gets. Its type stub is older than these arguments.
        descriptor = self.listener.dup().detach()
        self._shd = SocketHolder(descriptor, self.listener.family == socket.AF_UNIX, _BACKLOG)  # type: ignore[call-arg]


def _embedded(app: Any, config: uvicorn.Config, listener: socket.socket) -> _Embedded:
    certificate = config.ssl_certfile
    server = _Embedded(
        app,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        backlog=_BACKLOG,
        backpressure=_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=int(1000 * _HEAD_S), max_buffer_size=_HEAD_BYTES),
        log_dictconfig={"handlers": {}, "loggers": {}},  # its lines go to the server's log
        log_level=LogLevels.warning,
        ssl_cert=Path(certificate) if certificate else None,
        ssl_key=Path(config.ssl_keyfile or certificate) if certificate else None,
        ssl_protocol_min=SSLProtocols.tls12,
    )
    if listener.family != socket.AF_UNIX:
        # Limits that otherwise only a protocol in Python could enforce. Accepted sockets inherit them (tcp(7)).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, _PROBE_AFTER_S),
            (socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
            (socket.TCP_USER_TIMEOUT, _UNREAD_S * 1000),
            (socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES),
        ):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    server.listener = listener
    return server


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the first address of `host` that can be bound."""
    failure = OSError(f"{host} has no address")
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return socket.create_server(address, family=family)
        except OSError as error:
            failure = error
    raise failure
