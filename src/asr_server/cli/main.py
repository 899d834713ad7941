"""`asr-server`: the commands and their arguments. What they do is in the modules beside this one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asr_server import __version__
from asr_server.core.settings import SettingsError
from asr_server.engine.plan import PlanError

USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong settings or arguments."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (SettingsError, PlanError) as error:
        print(f"asr-server cannot start:\n{error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asr-server", description="Speech to text on Qwen3-ASR.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="run the server with the environment's settings"))
    _add_demo(commands.add_parser("demo", help="run it with the bundled model and show that it hears"))
    _add_live(commands.add_parser("live", help="stream a file or the microphone to a server and show the words"))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (HOST)")
    parser.add_argument("--port", type=int, help="port to listen on (PORT)")
    parser.add_argument("--model", dest="model_id", help="model: hub id, directory or 'demo' (MODEL_ID)")
    parser.set_defaults(run=_serve)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=8100, help="port to listen on (default 8100)")
    parser.add_argument("--once", action="store_true", help="stop after the first transcription")
    parser.set_defaults(run=_demo)


def _add_live(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, help="a recording in any container")
    source.add_argument("--mic", action="store_true", help="the microphone (needs the package sounddevice)")
    parser.add_argument("--server", default="http://127.0.0.1:8100", help="address (default http://127.0.0.1:8100)")
    parser.add_argument("--language", default="", help="language code or name; found out if left out")
    parser.add_argument("--speed", type=float, default=1.0, help="times real time for a file; 0 is as fast as it goes")
    parser.set_defaults(run=_live)


def _serve(parsed: argparse.Namespace) -> int:
    from asr_server.cli.serve import serve
    from asr_server.core import settings

    given = {name: getattr(parsed, name) for name in ("host", "port", "model_id")}
    return serve(settings.load(**{name: value for name, value in given.items() if value is not None}))


def _demo(parsed: argparse.Namespace) -> int:
    from asr_server.cli.demo import demo

    return demo(parsed.port, once=parsed.once)


def _live(parsed: argparse.Namespace) -> int:
    from asr_server.cli.live import LiveCommand, live

    return live(LiveCommand(parsed.server, parsed.file, parsed.language, parsed.speed))
