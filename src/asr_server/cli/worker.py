"""`asr-server worker`: the server behind a gateway, which starts and ends it. Not for people."""

from __future__ import annotations

import argparse
from pathlib import Path

from asr_server.cli.serve import work
from asr_server.core import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket to listen on")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    return work(settings.load(), parsed.socket)
