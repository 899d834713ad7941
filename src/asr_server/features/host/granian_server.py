"""The app under Granian: its HTTP and WebSocket protocols run in Rust, the app on one event loop as ever.

The limits of `http_protocol.py` and `socket_protocol.py` are set here by Granian's settings and by the kernel's, as far
as these go: docs/run/deployment.md lists the differences. Granian is given sockets that are bound already.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

# The head of a request; the time for it, and between two requests of a connection.
_HEAD_BYTES, _HEAD_S = 64 * 1024, 75.0
# Connections that wait to be accepted, and that are open at once.
_BACKLOG, _CONNECTIONS = 2048, 16_384
# A peer that is gone, or leaves data unread for this long, is disconnected. Accepted sockets inherit the option.
_PROBE_AFTER_S, _PROBE_EVERY_S, _UNREAD_S = 20, 5, 180
_UNSENT_BYTES = 128 * 1024
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class GranianConfig:
    """The configuration, by uvicorn's names."""

    host: str = ""
    port: int = 0
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    drain_s: float = 30.0  # how long running requests get to finish


class GranianServer:
    """Has of `uvicorn.Server` what this package uses: `run`, `started`, `should_exit`.

    `drain` is awaited before the sockets are closed; once `failed`, it shuts down.
    """

    def __init__(
        self,
        app: Any,
        drain: Callable[[], Awaitable[None]],
        config: GranianConfig,
        failed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app, self._drain, self._config, self._failed = app, drain, config, failed
        # By FORWARDED_ALLOW_IPS, as under uvicorn.
        self._proxied: Any = ProxyHeadersMiddleware(app, uvicorn.Config(app).forwarded_allow_ips or "127.0.0.1")
        self._active: set[asyncio.Task[Any]] = set()
        self.started = self.should_exit = False
        self.announce: Callable[[int | None], None] = lambda port: None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on that socket, or on the configured address, until it is to exit."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(sockets[0] if sockets else _bound(self._config.host, self._config.port)))

    async def _serve(self, listener: socket.socket) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self._exit)
        log = logging.getLogger("granian")
        try:
            async with self._app.router.lifespan_context(self._app):
                server = _embedded(self._handle, self._config, listener)
                serving = asyncio.create_task(server.serve())
                self.started = True
                log.info("Granian listens on %s", _shown(listener))
                self.announce(None if listener.family == socket.AF_UNIX else listener.getsockname()[1])
                while not (self.should_exit or self._failed() or serving.done()):  # noqa: ASYNC110  # threads set these
                    await asyncio.sleep(_TICK_S)
                await self._drain()
                server.stop()
                await serving
                if self._active:
                    await asyncio.wait(self._active, timeout=self._config.drain_s)
        finally:
            listener.close()

    def _exit(self) -> None:
        self.should_exit = True

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Return the app, with the addresses that proxies tell, and counted while it works."""
        task = asyncio.current_task()
        assert task is not None
        self._active.add(task)
        # Not of a WebSocket: with a call under way its close frame is not sent.
        messages = _Messages(receive) if scope["type"] == "http" else None
        try:
            await self._proxied(scope, messages.receive if messages else receive, send)
        finally:
            if messages:
                messages.close()
            self._active.discard(task)


class _Messages:
    """Granian's `receive` for an app that cancels it: who waits for an event and for the client to leave does.

    Granian loses the message of a call that was cancelled, and tells the next that the client has left. So a call goes
    on, and the next one gets its message.
    """

    def __init__(self, receive: Any) -> None:
        self._receive = receive
        self._pending: asyncio.Future[Any] | None = None

    async def receive(self) -> Any:
        """Return the next message."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._receive())
        message = await asyncio.shield(self._pending)
        self._pending = None
        return message

    def close(self) -> None:
        """The app has ended: nobody wants the message any more."""
        if self._pending is not None:
            self._pending.cancel()


class _Embedded(Server):  # type: ignore[misc]  # the library has no types
    """Granian's server in this process and on this event loop, on a socket of ours."""

    listener: socket.socket

    def _init_shared_socket(self) -> None:
        # Granian closes the descriptor that it gets.
        descriptor = self.listener.dup().detach()
        self._shd = SocketHolder(descriptor, self.listener.family == socket.AF_UNIX, _BACKLOG)  # type: ignore[call-arg]  # the stub is older


def _embedded(app: Any, config: GranianConfig, listener: socket.socket) -> _Embedded:
    certificate = config.ssl_certfile
    server = _Embedded(
        app,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        backlog=_BACKLOG,
        backpressure=_CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=int(1000 * _HEAD_S), max_buffer_size=_HEAD_BYTES),
        log_dictconfig={"handlers": {}, "loggers": {}},  # its lines go where all lines go
        log_level=LogLevels.warning,
        ssl_cert=Path(certificate) if certificate else None,
        ssl_key=Path(config.ssl_keyfile or certificate) if certificate else None,
        ssl_protocol_min=SSLProtocols.tls12,
    )
    _bound_by_the_kernel(listener)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    server.listener = listener
    return server


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket at the first address of that name that this machine has."""
    failure = OSError(f"{host} has no address")
    for family, kind, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    raise failure


def _bound_by_the_kernel(listener: socket.socket) -> None:
    """Set limits that only a protocol in Python could enforce otherwise. Accepted sockets inherit them (tcp(7))."""
    if listener.family == socket.AF_UNIX:  # the gateway's
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, _PROBE_AFTER_S),
        (socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
        (socket.TCP_USER_TIMEOUT, _UNREAD_S * 1000),
        (socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _shown(listener: socket.socket) -> str:
    if listener.family == socket.AF_UNIX:
        return "a Unix socket"
    host, port = listener.getsockname()[:2]
    return f"{host}:{port}"
