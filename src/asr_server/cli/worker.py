"""`asr-server worker`: the server as a child process of a gateway or of `--local`. Users do not start it."""

from __future__ import annotations

import argparse
import socket

from asr_server.cli.serve import serve_parent
from asr_server.core import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--socket", type=int, required=True, help="open descriptor of the Unix socket to listen on")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    return serve_parent(settings.load(), socket.socket(fileno=parsed.socket))
