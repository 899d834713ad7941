"""`asr-server`: the table of commands. Each is a module beside this one that says what it takes and does."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

from asr_server import __version__
from asr_server.cli.failure import Exit, NoServer, UsageError

# Each module has `add_arguments(parser)`, which sets `run(parsed) -> exit code`. It is imported when its command is
# the one: the server's libraries take half a second, and help should not.
COMMANDS = {
    "serve": "run the server with the environment's settings",
    "demo": "run it with the bundled model and show that it hears",
    "transcribe": "turn files into text, by a server or right here",
    "subtitles": "make subtitle files of recordings, translated if you like, and check such files",
    "translate": "turn recordings into text in another language",
    "job": "ask about work that a server was handed, fetch its result, remove it",
    "live": "stream a file or the microphone to a server and show the words",
    "bench": "measure a running server: speed, waiting times, delay of live words",
    "wyoming": "let Home Assistant use a server, by the Wyoming protocol",
    "models": "list, download, verify and remove models",
    "healthcheck": "ask the server on this machine whether it is live",
    "doctor": "say what this machine can run, and try it",
}
# Started by another command, not by people.
HIDDEN = ("worker",)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MORE = "To see it work: asr-server demo. asr-server COMMAND --help has the arguments of a command, and examples."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (`cli.failure.Exit`)."""
    _open_what_is_closed()
    _write_what_can_be_written()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except SystemExit:  # help, which should not wait for what is looked up below
        raise
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except UsageError as error:
        return _told(f"asr-server {given[0]}: {error}", Exit.USAGE)
    except NoServer as error:
        return _told(f"asr-server {given[0]}: {error}", Exit.NO_SERVER)
    except _settings_errors() as error:
        return _told(f"asr-server cannot start:\n{error}", Exit.USAGE)
    except BrokenPipeError:  # whoever read our output left, which is no fault
        _drop_output()
        return Exit.BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _drop_output()
        return _told(f"asr-server {given[0]}: cannot_write: {error.strerror}.", Exit.FAILED)


def _run(given: Sequence[str]) -> int:
    parser = _parser(given[0] if given else "")
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(Exit.USAGE)
    parsed = parser.parse_args(given)
    return int(parsed.run(parsed))


def _open_what_is_closed() -> None:
    """`2>&-` means that nobody wants it; Python would print errors to standard output instead."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # open to the end, as the real one would be
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _write_what_can_be_written() -> None:
    """In a locale without UTF-8 a question mark stands for what it does not have: words and names are in any script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """What waits to be written goes nowhere: the interpreter would complain when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asr-server", description="Speech to text on Qwen3-ASR.", epilog=_MORE)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        told = f"{purpose[0].upper()}{purpose[1:]}."
        # What a script says today must not mean another argument tomorrow, so nothing is abbreviated.
        subparser = commands.add_parser(name, help=purpose, description=told, allow_abbrev=False)
        if name == command:
            importlib.import_module(f"asr_server.cli.{name}").add_arguments(subparser)
    if command in HIDDEN:
        importlib.import_module(f"asr_server.cli.{command}").add_arguments(commands.add_parser(command))
    return parser


def _settings_errors() -> tuple[type[Exception], ...]:
    """Looked up when something failed; importing them takes longer than most commands' help."""
    from asr_server.core.settings import SettingsError
    from asr_server.engine.plan import PlanError

    return SettingsError, PlanError


def _told(line: str, code: Exit) -> Exit:
    print(line, file=sys.stderr)
    return code
