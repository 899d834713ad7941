"""The lines that `serve` prints when it listens: the address to open, and whether the model is on this machine."""

from __future__ import annotations

import socket
import sys

from loguru import logger

from asr_server.cli import models
from asr_server.cli.healthcheck import connectable
from asr_server.core.errors import ModelUnavailable
from asr_server.core.setting_types import LogLevel
from asr_server.core.settings import Settings

_SHOWS_INFO = (LogLevel.DEBUG, LogLevel.INFO)


def announce(settings: Settings, port: int | None, *, model: bool = True) -> None:
    """Print a few lines on a terminal, or write lines of the log elsewhere. `port`: None for a worker, which others do
    not call. `model`: False for a gateway, whose worker has the model."""
    there, about = _model(settings) if model else (True, "")
    pages = _pages(settings, port) if port else []
    if pages and sys.stderr.isatty() and not settings.log_json and settings.log_level in _SHOWS_INFO:
        _print(pages, about, there)
        return
    if pages:
        logger.info("ready", page=" ".join(pages))
    if not there:
        logger.warning("the model is not ready", reason=about)
    elif about:
        logger.info("the model is on this machine", model=about)


def _model(settings: Settings) -> tuple[bool, str]:
    try:
        return models.state(settings)
    except ModelUnavailable as error:
        return False, error.message


def _pages(settings: Settings, port: int) -> list[str]:
    """The address on this machine, and, if others can reach it, the one with its name."""
    scheme, host = "https" if settings.ssl_certfile else "http", connectable(settings.host)
    hosts = [host] if host == settings.host else [host, socket.gethostname()]
    return [f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}/" for name in hosts]


def _print(pages: list[str], about: str, there: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble("\n  Open   ", (" or ".join(pages), "bold")))
    if about:
        console.print(Text.assemble("  Model  ", (about, "" if there else "yellow")))
    console.print("  Ctrl-C stops the server.\n")
