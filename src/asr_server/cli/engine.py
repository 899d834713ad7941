"""`asr-server engine`: runs an engine for servers of the same user, and the engine process of one server."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import uvloop
from loguru import logger

from asr_server import feature_list
from asr_server.cli.failure import UsageError
from asr_server.core import logger as log
from asr_server.core import settings as settings_module
from asr_server.engine.serve import serve
from asr_server.processes.supervisor import end_with_parent

EXAMPLES = """\
examples:
  asr-server engine --listen /run/asr/engine.sock
  ENGINE_PROCESS=unix:/run/asr/engine.sock PORT=8101 asr-server serve

The engine and its servers need the same version, models and settings of the engine: docs/run/scaling.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--listen", type=Path, metavar="PATH", help="path of the Unix socket that servers connect to")
    place.add_argument("--socket", type=int, help=argparse.SUPPRESS)  # descriptor of the socket, for a child process
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    settings = settings_module.load()
    log.configure(settings.log_level, as_json=settings.log_json)
    resolved = feature_list.resolve(settings)
    if parsed.listen is None:
        listener = socket.socket(fileno=parsed.socket)
        end_with_parent(shut_down_s=0)  # at once: the engine process of the next server needs the accelerator's memory
    else:
        listener = bound(parsed.listen)
        logger.info("engine listens", engine=resolved.engine, model=resolved.model_id)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, resolved, listener, is_child=parsed.listen is None))
    return 0


def bound(path: Path) -> socket.socket:
    """Return a socket at this path that only this user can connect to. Replaces a socket that nobody listens at.

    Raises `UsageError`.
    """
    try:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise UsageError(f"--listen {path}: a file is there that is no socket. Name another path.")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise UsageError(f"--listen {path}: an engine listens there. Stop it, or name another path.")
        path.unlink(missing_ok=True)
        with ExitStack() as stack:
            stack.callback(os.umask, os.umask(0o177))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(path))
            return listener.dup()
    except OSError as error:
        raise UsageError(f"--listen {path}: {error.strerror or error}.") from None
