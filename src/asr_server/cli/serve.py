"""Runs the app under uvicorn."""

from __future__ import annotations

import signal

import uvicorn

from asr_server.core import logger
from asr_server.core.settings import Settings
from asr_server.server import create_app

# Clients pool connections for longer than uvicorn's default of 5 s, and would race its close.
_KEEP_ALIVE_S = 75
_DRAIN_S = 30


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; requests under way get up to 30 s to finish."""
    logger.configure(settings.log_level, as_json=settings.log_json)
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,  # the app writes one line per request itself
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
        server_header=False,
    )
    # uvicorn drains on these signals and then raises them again, for whoever handled them before: an orderly end is
    # no failure, so nobody does.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server = uvicorn.Server(config)
    server.run()
    return 0 if server.started else 1
