"""`asr-server`: the table of commands. Each is a module of this package, or of a distribution that adds it."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from asr_server import __version__
from asr_server.cli.failure import CommandError, Exit, UsageError
from asr_server.cli.parser import Parser
from asr_server.core.environment import prefer

# Each module has `add_arguments(parser)`, which sets `run(parsed)`. `run` returns an exit code, or None for 0. Only the
# module of the command that runs is imported: importing the server's libraries takes half a second.
COMMANDS = {
    "serve": "run the server with the environment's settings",
    "engine": "run an engine that several servers of this machine share",
    "demo": "run the server with the bundled model and transcribe a recording",
    "transcribe": "turn recordings into text",
    "subtitles": "make subtitle files of recordings, also translated",
    "translate": "turn recordings into text in another language",
    "align": "find when each word of a text is said in a recording",
    "speak": "turn a text into speech",
    "speakers": "list, add and delete the voices by which a server recognises people",
    "live": "stream a file or the microphone to a server and show the text",
    "evaluate": "count word errors on recordings whose text is known, and compare two runs",
    "wyoming": "let Home Assistant use a server through the Wyoming protocol",
    "telephony": "let Twilio, Asterisk and FreeSWITCH send their calls to a server",
    "models": "list, download, verify and remove models",
    "export": "write the audio encoder for ONNX Runtime or TensorRT",
    "healthcheck": "ask the server on this machine whether it is live",
    "doctor": "show what this machine can run, and test it",
}
# Commands from separate distributions, each with an entry point of the same name in the group `asr_server.commands`.
EXTRAS = {"telephony": "asr-server-telephony"}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_MORE = "To see it work: asr-server demo. asr-server COMMAND --help has the arguments of a command, and examples."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (`cli.failure.Exit`)."""
    # OpenBLAS reads this variable when numpy is imported. Its threads spin while they wait for each other: on two busy
    # cores the embedded model takes four times as long with several threads as with one.
    prefer("OPENBLAS_NUM_THREADS", "1")
    _replace_closed_outputs()
    _allow_any_text()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = build_parser(given[0] if given else "")
        if not given:
            parser.print_help(sys.stderr)
            parser.exit(Exit.USAGE)
        parsed = parser.parse_args(given)
        code = int(parsed.run(parsed) or Exit.DONE)
        sys.stdout.flush()  # here, since nothing would handle an error of the flush at the interpreter's exit
        return code
    except KeyboardInterrupt as error:  # its text says what is kept
        return _fail(f"asr-server {given[0]}: {str(error) or 'stopped, and no file was written'}.", Exit.INTERRUPTED)
    except CommandError as error:
        return _fail(f"asr-server {given[0]}: {error}", error.exit_code)
    except BrokenPipeError:  # the reader of standard output has ended, which is not an error
        _drop_output()
        return Exit.BROKEN_PIPE
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        _drop_output()
        return _fail(f"asr-server {given[0]}: cannot_write: {error.strerror}.", Exit.FAILED)
    except Exception as error:
        # Imported only after a failure: these imports take longer than printing the help of most commands.
        from asr_server.core.errors import ModelUnavailable
        from asr_server.core.settings import SettingsError
        from asr_server.engine.plan import PlanError

        if isinstance(error, ModelUnavailable):
            return _fail(f"asr-server {given[0]}: {error}", Exit.FAILED)
        if not isinstance(error, SettingsError | PlanError):
            raise
        return _fail(f"asr-server cannot start:\n{error}", Exit.USAGE)


def _replace_closed_outputs() -> None:
    """Open closed outputs as the null device: after `2>&-` Python has no stderr, and would print errors to standard
    output."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _allow_any_text() -> None:
    """Print question marks for characters that the locale cannot encode: texts and names may be in any script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Discard the buffered output: the interpreter would report an error when it flushes it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(command: str) -> Parser:
    """Return the parser, with the arguments of one command only."""
    parser = Parser(prog="asr-server", description="Speech to text on Qwen3-ASR.", epilog=_MORE, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        description = f"{purpose[0].upper()}{purpose[1:]}."
        # An abbreviation in a script could mean another argument after an update.
        subparser = commands.add_parser(name, help=purpose, description=description, allow_abbrev=False)
        if name == command:
            command_module(name).add_arguments(subparser)
    return parser


def command_module(name: str) -> Any:
    """Return the module of a command. Raises `UsageError` if its distribution is not installed."""
    if name not in EXTRAS:
        return importlib.import_module(f"asr_server.cli.{name}")
    from importlib import metadata  # importing it takes longer than printing the help of most commands

    for found in metadata.entry_points(group="asr_server.commands", name=name):
        return found.load()
    raise UsageError(f"not installed; in a copy of the repository, run pip install ./extras/{EXTRAS[name]}.")


def _fail(line: str, code: Exit) -> Exit:
    print(line, file=sys.stderr)
    return code
