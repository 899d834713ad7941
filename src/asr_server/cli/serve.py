"""Runs an app under uvicorn: the server, the gateway in front of a worker, or such a worker."""

from __future__ import annotations

import argparse
import functools
import gc
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from asr_server.cli import certificate
from asr_server.cli.failure import UsageError
from asr_server.cli.http_protocol import HttpProtocol
from asr_server.cli.port import refusal
from asr_server.cli.socket_protocol import SocketProtocol
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.core.settings import Settings

EXAMPLES = """\
examples:
  asr-server serve --port 8100
  asr-server serve --port 8100 --model Qwen/Qwen3-ASR-0.6B
  MODEL_ID=demo PORT=8100 asr-server serve

The commands ask port 8100, and the page is at http://127.0.0.1:8100/ then.
Every other setting is a variable of the environment, or a line of .env: docs/configuration.md.
"""
# Clients pool connections for longer than uvicorn's default of 5 s, and would race its close.
_KEEP_ALIVE_S = 75
_DRAIN_S = 30
# Live clients may send 10 MB of audio in one frame.
_MAX_FRAME_BYTES = 32 * 1024 * 1024
# A dead connection is known after 35 s, and gone after 40 s at the latest (see socket_protocol).
_PING_S, _PONG_S = 20.0, 15.0


class _Server(uvicorn.Server):
    """Lets live sessions end in order before uvicorn closes every socket with 1012."""

    def __init__(self, config: uvicorn.Config, drained: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drained = drained

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then shut down."""
        await self._drained()
        await super().shutdown(sockets)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", help="address to listen on (HOST; 127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, help="port to listen on (PORT; 8000)")
    parser.add_argument(
        "--model", dest="model_id", help="model: hub id, directory or 'demo' (MODEL_ID; Qwen/Qwen3-ASR-1.7B)"
    )
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    given = {name: getattr(parsed, name) for name in ("host", "port", "model_id")}
    return serve(settings_module.load(**{name: value for name, value in given.items() if value is not None}))


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; requests under way get up to 30 s to finish. Raises `UsageError` where it cannot
    listen, or not with the certificate."""
    if reason := refusal(settings.host, settings.port):
        # uvicorn would say it in the middle of a log, after all parts were built.
        raise UsageError(
            f"{settings.host}:{settings.port} cannot be taken ({reason}). Stop what listens there, or choose another "
            "place: --port or PORT, --host or HOST."
        )
    if reason := certificate.refusal(settings):
        raise UsageError(f"SSL_CERTFILE, SSL_KEYFILE: {reason}.")
    configure_logging(settings)
    place = {
        "host": settings.host,
        "port": settings.port,
        "ssl_certfile": settings.ssl_certfile or None,
        "ssl_keyfile": settings.ssl_keyfile or None,
    }
    if settings.gateway_mode:
        # The server's own modules stay out of this process.
        from asr_server.gateway import app as gateway

        app = gateway.create_app(settings)
        return _serve_app(app, functools.partial(gateway.drain, app), place)
    return _run_server(settings, place)


def work(settings: Settings, path: Path) -> int:
    """Serve a gateway on a Unix socket, until it says so or is gone."""
    from asr_server.gateway.child import end_with_gateway

    configure_logging(settings)
    end_with_gateway(path)
    return _run_server(settings, {"uds": str(path)})


def _run_server(settings: Settings, place: dict[str, Any]) -> int:
    from asr_server.server import create_app, drain

    app = create_app(settings)
    return _serve_app(app, functools.partial(drain, app), place)


def configure_logging(settings: Settings) -> None:
    """Log what this process does to standard error, at the level and in the format of the settings."""
    logger.configure(settings.log_level, as_json=settings.log_json)
    logging.getLogger("uvicorn.error").addFilter(_fit_to_be_kept)


def _serve_app(app: Any, drained: Callable[[], Awaitable[None]], place: dict[str, Any]) -> int:
    # uvicorn drains on these signals and then raises them again, for whoever handled them before: an orderly end is
    # no failure, so nobody does.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = http_server(app, drained, place)
    server.run()
    # The process ends here: the interpreter would look for garbage among half a million objects first, for most of a
    # second in which a restart or a gateway waits.
    gc.freeze()
    return 0 if server.started else 1


def http_server(app: Any, drained: Callable[[], Awaitable[None]], place: dict[str, Any]) -> uvicorn.Server:
    """uvicorn with the server's protocols and limits. `drained` is awaited before the sockets are closed; `place` is
    where to listen, in uvicorn's words."""
    config = uvicorn.Config(
        app,
        **place,
        log_config=None,
        access_log=False,  # the app writes one line per request itself
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
        server_header=False,
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=_MAX_FRAME_BYTES,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PONG_S,
        ws_per_message_deflate=False,  # audio does not shrink, and deflating it costs more than sending it
    )
    return _Server(config, drained)


def _fit_to_be_kept(record: logging.LogRecord) -> bool:
    """Drops two lines of uvicorn's: the one for each socket, since it holds the query and with it keys and session ids;
    and the traceback that it writes when a client's text is no UTF-8, which is the client's fault and closes with 1007.
    """
    return '"WebSocket %s"' not in str(record.msg) and not str(record.msg).startswith("Invalid UTF-8")
