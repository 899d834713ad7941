"""`asr-server serve`: runs the server under uvicorn or Granian."""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import loguru
import uvicorn

from asr_server.cli import models
from asr_server.cli.failure import UsageError
from asr_server.cli.healthcheck import connectable
from asr_server.cli.listening import address_error, certificate_error
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.core.errors import EngineFailed, ModelUnavailable
from asr_server.core.setting_types import LogLevel
from asr_server.core.settings import Settings
from asr_server.net.http_protocol import HttpProtocol
from asr_server.net.socket_protocol import SocketProtocol
from asr_server.processes.launcher import raise_file_limit
from asr_server.processes.supervisor import end_with_parent

EXAMPLES = """\
examples:
  asr-server serve
  asr-server serve --model Qwen/Qwen3-ASR-0.6B
  MODEL_ID=demo PORT=8202 asr-server serve

The commands look for a server on port 8100; ASR_SERVER_URL=localhost:8202 names another.
All other settings are environment variables, or lines of .env: docs/run/configuration.md.
"""
# Clients keep idle connections longer than uvicorn's default of 5 s, and would send on one that uvicorn closes.
_KEEP_ALIVE_S = 75
# A thread that computes in Python gives the interpreter to other threads after this long. The default is 5 ms, and the
# engine then waits that long after each of its steps: next to four callers with long texts, a recording took 3.5 to 3.9
# times as long as next to two busy programs. With 1 ms it takes 1.8 to 2.6 times as long.
_SWITCH_S = 0.001
_DRAIN_S = 30
_CLOSE_S = 5  # for the rest, once the running requests have ended or been cut
# The exit code after a failure of the engine: supervisors restart a process that did not exit with 0.
_FAILED = 70  # EX_SOFTWARE of sysexits.h
# Live clients may send 10 MB of audio in one frame.
_MAX_FRAME_BYTES = 32 * 1024 * 1024
# A dead connection is detected after 35 s and closed after 40 s at the latest (see socket_protocol).
_PING_S, _PONG_S = 20.0, 15.0
_SHOWS_INFO = (LogLevel.DEBUG, LogLevel.INFO)


class _Server(uvicorn.Server):
    """Drains the app before every socket is closed with 1012, so that live sessions end in order."""

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]], failed: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(config)
        self._drain, self._failed = drain, failed
        self.announce: Callable[[int | None], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then announce the address, on a thread: requests need not wait until it has read the hub's cache."""
        await super().startup(sockets)
        if self.started and self.announce is not None:
            name = self.servers[0].sockets[0].getsockname()
            port = name[1] if isinstance(name, tuple) else None
            threading.Thread(target=self.announce, args=(port,), daemon=True).start()

    async def on_tick(self, counter: int) -> bool:
        """Return true to shut down: on a signal, or because the engine has failed."""
        return await super().on_tick(counter) or self._failed()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then shut down."""
        await self._drain()
        await super().shutdown(sockets)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("--host", help="address to listen on (HOST; 127.0.0.1: only this machine)")
    parser.add_argument("--port", type=int, help="port to listen on (PORT; 8100)")
    parser.add_argument(
        "--model", dest="model_id", help="model: hub id, directory, 'moonshine-tiny-en' or 'demo' (MODEL_ID; auto)"
    )
    parser.add_argument("--socket", type=int, help=argparse.SUPPRESS)  # open descriptor, for the worker of --local
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if parsed.socket is not None:
        settings = settings_module.load()
        configure_logging(settings)
        end_with_parent()
        return _run_server(settings, {}, socket.socket(fileno=parsed.socket))
    given = {name: getattr(parsed, name) for name in ("host", "port", "model_id")}
    return serve(settings_module.load(**{name: value for name, value in given.items() if value is not None}))


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT. Running requests get up to 30 s to finish. Raises `UsageError` if the address or
    the certificate cannot be used."""
    if reason := address_error(settings.host, settings.port):
        # uvicorn would report it in the middle of its log, after the app was built.
        raise UsageError(
            f"{settings.host}:{settings.port} cannot be used ({reason}). Stop the program that listens there, or "
            "choose another address: --port or PORT, --host or HOST."
        )
    if reason := certificate_error(settings):
        raise UsageError(f"SSL_CERTFILE={settings.ssl_certfile}: {reason}.")
    configure_logging(settings)
    raise_file_limit()
    sys.setswitchinterval(_SWITCH_S)
    files = dict(zip(("ssl_certfile", "ssl_keyfile"), settings.tls_files, strict=False))
    return _run_server(settings, {"host": settings.host, "port": settings.port, **files})


def _run_server(settings: Settings, address: dict[str, Any], listener: socket.socket | None = None) -> int:
    from asr_server.app import create_app, drain

    async def drain_and_end() -> None:
        await drain(app)
        # A thread that waits for a name server or a slow disk may keep the interpreter from exiting.
        end = threading.Timer(_DRAIN_S + _CLOSE_S, os._exit, [1])
        end.daemon = True
        end.start()

    failed = threading.Event()

    def on_failure(error: EngineFailed) -> None:
        loguru.logger.opt(exception=error).critical("the engine has failed, and the process ends", reason=error.message)
        failed.set()

    app = create_app(settings, on_failure)
    gc.freeze()  # otherwise a full garbage collection would walk the whole app and stall the event loop
    server = http_server(app, drain_and_end, address, failed.is_set, granian=settings.use_granian)
    server.announce = functools.partial(announce, settings)
    # uvicorn shuts down on these signals, and then raises them again for the handlers that were set before. The
    # default handlers would turn an orderly end into a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run([listener] if listener is not None else None)
    # At exit the interpreter would collect garbage among half a million objects. That takes most of a second, which
    # delays a restart.
    gc.freeze()
    if failed.is_set():
        return _FAILED
    return 0 if server.started else 1


def configure_logging(settings: Settings) -> None:
    """Log to standard error, at the level and in the format of the settings."""
    logger.configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("uvicorn.error").addFilter(_is_loggable)


def http_server(
    app: Any,
    drain: Callable[[], Awaitable[None]],
    address: dict[str, Any],
    failed: Callable[[], bool] = lambda: False,
    *,
    granian: bool = False,
) -> _Server:
    """Return uvicorn, or Granian, with the server's protocols and limits. `drain` is awaited before the sockets are
    closed. `address`: uvicorn's arguments that say where to listen. Once `failed` returns True, it shuts down."""
    config = uvicorn.Config(
        app,
        **address,
        log_config=None,
        access_log=False,  # the app logs the requests itself
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
        server_header=False,
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=_MAX_FRAME_BYTES,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PONG_S,
        ws_per_message_deflate=False,  # compressing audio saves nothing and costs more time than sending it
    )
    if not granian:
        return _Server(config, drain, failed)
    from asr_server.features.host.granian_server import GranianServer

    class _Granian(_Server, GranianServer):
        pass

    return _Granian(config, drain, failed)


def _is_loggable(record: logging.LogRecord) -> bool:
    """Drop two messages of uvicorn: the one for each WebSocket, since the query holds keys and session ids; and the
    traceback for a client whose text is not UTF-8, which is the client's fault and closes the socket with 1007.
    """
    return '"WebSocket %s"' not in str(record.msg) and not str(record.msg).startswith("Invalid UTF-8")


def announce(settings: Settings, port: int | None) -> None:
    """Print a few lines if stderr is a terminal, otherwise log them, with the address last. `port`: None for the worker
    of `--local`, which nobody else calls."""
    try:
        there, about = models.state(settings)
    except ModelUnavailable as error:
        there, about = False, error.message
    pages = _pages(settings, port) if port else []
    if pages and sys.stderr.isatty() and not settings.log_json and settings.log_level in _SHOWS_INFO:
        _print(pages, about, there)
        return
    if not there:
        loguru.logger.warning("the model is not ready", reason=about)
    elif about:
        loguru.logger.info("the model is on this machine", model=about)
    if pages:
        loguru.logger.info("ready", page=" ".join(pages))


def _pages(settings: Settings, port: int) -> list[str]:
    """Return the address on this machine, and the one with the machine's name if other machines can reach it."""
    scheme, host = "https" if settings.ssl_certfile else "http", connectable(settings.host)
    hosts = [host] if host == settings.host else [host, socket.gethostname()]
    return [f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/" for name in hosts]


def _print(pages: list[str], about: str, there: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("\n  Ctrl-C stops the server.")
    if about:
        console.print(Text.assemble("  Model  ", (about, "" if there else "yellow")))
    console.print(Text.assemble("  Open   ", (" or ".join(pages), "bold")))
