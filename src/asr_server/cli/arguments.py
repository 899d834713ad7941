"""Arguments that several commands share, in groups, and the checks of their values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from asr_server.cli import formats
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.formats import Format
from asr_server.cli.parser import did_you_mean
from asr_server.core.environment import client_variable
from asr_server.core.errors import InvalidInput
from asr_server.recordings.requests import ChannelMode, Mode, VoiceDetection
from asr_server.subtitle.cues import SpeakerStyle
from asr_server.text import languages

DEFAULT_SERVER = "http://127.0.0.1:8100"
DEFAULT_JOBS = 4

EXIT_CODES = "exit codes: 0 all done; 1 some failed; 2 wrong arguments or settings; 3 no server; 130 interrupted"
_KEY_HELP = (
    "file that holds the server's key; default: ASR_API_KEY of the environment. Never on the command line itself"
)


def explain(parser: argparse.ArgumentParser, examples: Iterable[str], codes: str = EXIT_CODES) -> None:
    parser.epilog = "\n".join(["examples:", *(f"  {line}" for line in examples), "", codes])


def add_recordings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="recordings in any container, directories, or - for standard input"
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="search directories within directories")


def add_recognition(group: argparse._ArgumentGroup) -> None:
    add_language(group)
    group.add_argument("--prompt", default="", help="text that helps recognition: topic, names, terms")
    _add_alias(group, "--initial_prompt", dest="prompt")
    add_hotwords(group)
    group.add_argument(
        "--vad",
        choices=[use.value for use in VoiceDetection],
        default=VoiceDetection.STRICT.value,
        help="what the model is given: speech (strict, the default), loud sound too (advise), or all (off)",
    )
    group.add_argument("--strict", action="store_true", help="fail if any part of the recording was not heard")


def add_language(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "-l", "--language", type=language, help="code or name of the spoken language (default: detect it)"
    )


def add_hotwords(group: argparse._ActionsContainer) -> None:
    group.add_argument("--hotword", action="append", default=[], metavar="WORD", help="a word to expect; repeatable")


def add_speakers(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--speakers", action="store_true", help="tell speakers apart: A, B and so on")
    group.add_argument("--num-speakers", type=_people, metavar="N", help="how many speak")
    group.add_argument("--min-speakers", type=_people, metavar="N", help="how many speak at least")
    group.add_argument("--max-speakers", type=_people, metavar="N", help="how many speak at most")
    group.add_argument(
        "--known-speaker",
        type=_known_speaker,
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a name, and a recording of 2 to 10 s in which only that person speaks; repeatable",
    )
    group.add_argument(
        "--channel-mode",
        choices=[mode.value for mode in ChannelMode],
        help="split: each channel is a speaker; mix (default): all channels are one signal",
    )


def add_formats(
    group: argparse._ActionsContainer, allowed: Sequence[Format] = formats.FORMATS, *, several: bool = True
) -> None:
    """Add the option for one or more formats. `formats.chosen` has the rules."""
    names = ", ".join(allowed)
    group.add_argument(
        "-f",
        "--format",
        type=formats.parse,
        action="extend",
        metavar="FORMAT",
        help=f"{'one or more' if several else 'one'} of {names}{', with commas or repeated' if several else ''} "
        f"(default: by the name of --output, or {allowed[0]})",
    )
    _add_alias(group, "--output_format", dest="format", type=formats.parse, action="extend")


def _add_alias(group: argparse._ActionsContainer, name: str, **options: Any) -> None:
    group.add_argument(name, help=argparse.SUPPRESS, default=argparse.SUPPRESS, **options)


def add_target(group: argparse._ArgumentGroup, *, required: bool) -> None:
    group.add_argument(
        "--to",
        type=target_language,
        required=required,
        metavar="LANGUAGE",
        help="target language: a tag or an English name",
    )
    group.add_argument("--bilingual", action="store_true", help="include the source text")
    group.add_argument(
        "--term",
        type=partial(_pair, example="kitchen=Küche"),
        action="append",
        default=[],
        metavar="TERM=TRANSLATION",
        help="how to translate a term; repeatable",
    )


def add_layout(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mode", choices=get_args(Mode), default="accurate", help="align the times with the sound, or estimate them"
    )
    group.add_argument("--max-line-chars", type=_columns, default=42, metavar="N", help="widest line (default 42)")
    group.add_argument("--max-lines", type=_lines, default=2, metavar="N", help="most lines of a cue (default 2)")
    group.add_argument(
        "--speaker-style",
        choices=[style.value for style in SpeakerStyle],
        help="with --speakers: names (default), dash for two speakers in one cue, or none",
    )
    _add_alias(group, "--max_line_width", dest="max_line_chars", type=_columns)
    _add_alias(group, "--max_line_count", dest="max_lines", type=_lines)


def add_outputs(group: argparse._ArgumentGroup, *, beside: bool) -> None:
    """Add the options that say where results go. `beside` is true if `--beside` is the default."""
    place = group.add_mutually_exclusive_group()
    place.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="a file such as talk.srt; a directory where PATH has no ending or there are several files; - for "
        "standard output",
    )
    _add_alias(place, "--output_dir", dest="output", type=lambda text: f"{text.rstrip('/')}/")
    usual = " (default)" if beside else ""
    place.add_argument("--beside", action="store_true", default=beside, help=f"files beside each recording{usual}")
    existing = group.add_mutually_exclusive_group()
    existing.add_argument("--force", action="store_true", help="replace files that exist")
    existing.add_argument(
        "--skip-existing",
        action="store_true",
        help="skip recordings whose files exist, as is done for those in a directory",
    )
    group.add_argument("--quiet", action="store_true", help="report failures only")


def add_file_output(parser: argparse.ArgumentParser, allowed: Iterable[str], file: str, format_help: str) -> None:
    """Add the options that say where one result is written and in which format. `file`: the help of `--output`."""
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", help=file)
    group.add_argument("-f", "--format", choices=list(allowed), help=format_help)
    group.add_argument("--force", action="store_true", help="replace the file if it exists")
    group.add_argument("--quiet", action="store_true", help="report failures only")


def add_workers(group: argparse._ArgumentGroup) -> None:
    """Add the options that choose a server or a local worker and its model, and say how it is used."""
    add_worker(group)
    add_model(group)
    group.add_argument(
        "--jobs", type=count, metavar="N", help=f"recordings processed at a time (default {DEFAULT_JOBS})"
    )
    group.add_argument(
        "--job", action="store_true", help="submit each recording as a job, which goes on when this command ends"
    )


def add_worker(group: argparse._ArgumentGroup) -> None:
    """Add the options that choose a server or a local worker."""
    who = group.add_mutually_exclusive_group()
    add_server(who)
    who.add_argument("--local", action="store_true", help="no server: start a worker with the environment's settings")
    add_key(group)


def add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", default="", help="a model of the server; with --local: MODEL_ID")


def add_server(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--server",
        type=server_address,
        metavar="URL",
        help=f"address of the server, also localhost:8100 or :8100 (default: ASR_SERVER_URL, or {DEFAULT_SERVER})",
    )


def add_key(group: argparse._ActionsContainer) -> None:
    """Add the option for a file with the key: every user of a machine can see the command lines of all others."""
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help=_KEY_HELP)


def add_log_level(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--log-level",
        default="INFO",
        type=str.upper,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="least severe log line on stderr (default INFO)",
    )


def server(parsed: argparse.Namespace) -> str:
    """Return the address of the server: `--server`, the environment's, or the default. Raises `UsageError`."""
    return address(parsed.server, "ASR_SERVER_URL") or DEFAULT_SERVER


def address(given: str | None, variable: str) -> str:
    """Return the given address, or the one in an environment variable; "" if there is neither. Raises `UsageError`."""
    if given or not (stated := client_variable(variable)):
        return given or ""
    try:
        return server_address(stated)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{variable}: {error}.") from None


def key(parsed: argparse.Namespace) -> str:
    """Return the key for the server, or "". Raises `UsageError`, which does not show the key."""
    return secret(parsed.api_key_file, "--api-key-file", "ASR_API_KEY")


def secret(file: Path | None, option: str, variable: str) -> str:
    """Return the secret in the file that an option names, or in an environment variable, or "". Raises `UsageError`,
    which does not show the secret."""
    return word_of(file, option) if file is not None else _word(client_variable(variable), variable)


def word_of(file: Path, option: str) -> str:
    """Return the key or secret in the file that an option names. Raises `UsageError`, which does not show the key."""
    name = shown(str(file))
    try:
        content = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{option} {name} cannot be read: {reason}.") from None
    if not content:
        raise UsageError(f"{option} {name} is empty.")
    return _word(content, name)


def _word(text: str, where: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(f"{where} holds no key (one word of ASCII).")
    return text


def server_address(text: str) -> str:
    """Return an http or https address without a trailing slash. `host:port` is http, `:port` http on this machine."""
    address = text if "://" in text else f"http://{'127.0.0.1' if text.startswith(':') else ''}{text}"
    try:
        parts = urlsplit(address)
        named = parts.hostname and parts.port != 0 and ("://" in text or parts.port is not None)
        usable = bool(named) and parts.scheme in {"http", "https"} and not (parts.query or parts.fragment)
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address like {DEFAULT_SERVER} or localhost:8100")
    return address.rstrip("/")


def language(text: str) -> str | None:
    """Return the model's name of a language; None for "auto"."""
    try:
        return languages.normalize(text)
    except InvalidInput as error:
        raise _language_error(text, error) from None


def target_language(text: str) -> str:
    try:
        return languages.find(text).tag
    except InvalidInput as error:
        raise _language_error(text, error) from None


def _language_error(text: str, error: InvalidInput) -> argparse.ArgumentTypeError:
    guess = did_you_mean(text, languages.model_languages())
    return argparse.ArgumentTypeError(f"{text!r} is not a language.{guess}" if guess else error.message)


def count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _pair(text: str, example: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form {example}")
    return name, value


def _known_speaker(text: str) -> tuple[str, Path]:
    name, file = _pair(text, "Ann=ann.wav")
    return name, Path(file)


def within(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
    return int(text)


port = partial(within, least=1, most=65_535)
_people = partial(within, least=1, most=40)
_columns = partial(within, least=2, most=200)
_lines = partial(within, least=1, most=4)
