"""Arguments that several commands share, in groups, and the checks of their values. Not what is done with them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from asr_server.cli.backend import MODES
from asr_server.cli.failure import UsageError, shown
from asr_server.core.errors import InvalidInput
from asr_server.text import languages

DEFAULT_SERVER = "http://127.0.0.1:8100"
DEFAULT_JOBS = 4

EXIT_CODES = "exit codes: 0 all done; 1 some failed; 2 wrong arguments or settings; 3 no server; 130 interrupted"
_KEY_HELP = (
    "file that holds the server's key; default: ASR_API_KEY of the environment. Never on the command line itself"
)


def explain(parser: argparse.ArgumentParser, examples: Iterable[str], codes: str = EXIT_CODES) -> None:
    """What stands below a command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["examples:", *(f"  {line}" for line in examples), "", codes])


def add_recordings(parser: argparse.ArgumentParser, more: str = "") -> None:
    """The files of a batch."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=f"recordings in any container, directories, or - for standard input{more}",
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="go into directories within directories")


def add_hearing(group: argparse._ArgumentGroup) -> None:
    """What helps recognition."""
    group.add_argument("--language", type=language, default="", help="code or name; found out if left out")
    group.add_argument("--prompt", default="", help="text that helps: topic, names, terms")
    group.add_argument("--hotword", action="append", default=[], metavar="WORD", help="listen for it; repeatable")


def add_target(group: argparse._ArgumentGroup, *, required: bool) -> None:
    """Another language."""
    group.add_argument(
        "--to", type=tongue, required=required, metavar="LANGUAGE", help="target: a tag or an English name"
    )
    group.add_argument("--bilingual", action="store_true", help="the source text along with the translation")
    group.add_argument(
        "--term",
        type=_term,
        action="append",
        default=[],
        metavar="TERM=TRANSLATION",
        help="translate it so; repeatable",
    )


def add_layout(group: argparse._ArgumentGroup) -> None:
    """How cues are made. The bounds are the server's."""
    group.add_argument("--mode", choices=list(MODES), default="accurate", help="times from the sound, or estimated")
    group.add_argument("--max-line-chars", type=_columns, default=42, metavar="N", help="widest line (default 42)")
    group.add_argument("--max-lines", type=_lines, default=2, metavar="N", help="most lines of a cue (default 2)")


def add_outputs(group: argparse._ArgumentGroup, *, beside: bool) -> None:
    """`beside`: whether that is where files go when nothing is said."""
    place = group.add_mutually_exclusive_group()
    place.add_argument(
        "--output", type=Path, metavar="PATH", help="a file; a directory where there are several; - for standard output"
    )
    usual = " (default)" if beside else ""
    place.add_argument("--beside", action="store_true", default=beside, help=f"a file beside each recording{usual}")
    group.add_argument("--force", action="store_true", help="replace files that exist")
    group.add_argument("--quiet", action="store_true", help="no bar, no notes; failures are still told")


def add_workers(group: argparse._ArgumentGroup) -> None:
    """Who hears a batch."""
    who = group.add_mutually_exclusive_group()
    add_server(who)
    who.add_argument("--local", action="store_true", help="this process, with the environment's settings; no server")
    group.add_argument("--model", default="", help="with --local: MODEL_ID; else a name that the server knows")
    add_key(group)
    group.add_argument(
        "--jobs", type=count, metavar="N", help=f"recordings under way at a time (default {DEFAULT_JOBS})"
    )
    group.add_argument(
        "--job", action="store_true", help="hand each to the server as a job, which goes on if this command is left"
    )


def add_server(group: argparse._ActionsContainer) -> None:
    """Which server."""
    group.add_argument(
        "--server", type=server_address, default=DEFAULT_SERVER, metavar="URL", help=f"default: {DEFAULT_SERVER}"
    )


def add_key(group: argparse._ActionsContainer) -> None:
    """There is no `--key VALUE`: every user of a machine sees the command lines of all others."""
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help=_KEY_HELP)


def key(parsed: argparse.Namespace) -> str:
    """The key for the server, "" for none. Raises `UsageError`, which does not show it."""
    from asr_server.core.settings import client_key

    file: Path | None = parsed.api_key_file
    found = client_key() if file is None else _content(file)
    if not found.isascii() or not found.isprintable() or " " in found:
        raise UsageError(f"{'ASR_API_KEY' if file is None else shown(str(file))} holds no key: one word of ASCII.")
    return found


def _content(file: Path) -> str:
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--api-key-file {shown(str(file))} cannot be read: {reason}.") from None
    if not content:
        raise UsageError(f"--api-key-file {shown(str(file))} is empty.")
    return content


def server_address(text: str) -> str:
    """An http(s) address, without a slash at its end."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is no address like {DEFAULT_SERVER}")
    return text.rstrip("/")


def language(text: str) -> str:
    """A language that the models know, as it was given."""
    try:
        languages.normalize(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def tongue(text: str) -> str:
    """The tag of a language to translate into: any that there is."""
    from asr_server.text import target_languages

    try:
        return target_languages.find(text).tag
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(error.message) from None


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def port(text: str) -> int:
    """One that can be named to others."""
    return _within(text, 1, 65_535)


def callers(text: str) -> int:
    """No more than a client has connections."""
    return _within(text, 1, 100)


def sessions(text: str) -> int:
    """As many live sessions, or none."""
    return _within(text, 0, 100)


def _term(text: str) -> tuple[str, str]:
    term, _, translation = (part.strip() for part in text.partition("="))
    if not term or not translation:
        raise argparse.ArgumentTypeError(f"{text!r} is not like kitchen=Küche")
    return term, translation


def _columns(text: str) -> int:
    return _within(text, 2, 200)


def _lines(text: str) -> int:
    return _within(text, 1, 4)


def _within(text: str, least: int, most: int) -> int:
    if not text.isdigit() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
    return int(text)
