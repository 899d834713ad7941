"""`asr-server transcribe`: files, directories or standard input to text, by a server or in this process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from asr_server.cli import outlets, sources
from asr_server.cli.bars import Bars
from asr_server.cli.batch import Batch, complain
from asr_server.cli.failure import Exit, UsageError, shown
from asr_server.cli.hearer import Hearer, Wish
from asr_server.cli.sources import LeftOut, Source
from asr_server.core.errors import InvalidInput
from asr_server.service.request import ResponseFormat
from asr_server.text import languages

DEFAULT_SERVER = "http://127.0.0.1:8100"
_DEFAULT_JOBS = 4
# More would only make a message that nobody reads.
_MOST_NAMED = 20

EXAMPLES = """\
examples:
  asr-server transcribe talk.mp3
  asr-server transcribe talk.mp4 --format srt --output talk.srt
  asr-server transcribe -r recordings --beside --jobs 8
  ffmpeg -i talk.mkv -f wav - | asr-server transcribe - --stream
  asr-server transcribe talk.mp3 --local --model demo

exit codes: 0 all done; 1 some failed; 2 wrong arguments or settings; 3 no server; 130 interrupted
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="recordings in any container, directories, or - for standard input"
    )
    parser.add_argument("-r", "--recursive", action="store_true", help="go into directories within directories")
    _add_wishes(parser.add_argument_group("what is transcribed how"))
    _add_outputs(parser.add_argument_group("where it goes"))
    _add_hearers(parser.add_argument_group("who transcribes"))
    parser.set_defaults(run=run)


def _add_wishes(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--format", choices=[f.value for f in ResponseFormat], default="text", help="default: text")
    group.add_argument("--language", type=_language, default="", help="code or name; found out if left out")
    group.add_argument("--prompt", default="", help="text that helps: topic, names, terms")
    group.add_argument("--hotword", action="append", default=[], metavar="WORD", help="listen for it; repeatable")
    group.add_argument("--stream", action="store_true", help="print the words as they are decoded, one file at a time")


def _add_outputs(group: argparse._ArgumentGroup) -> None:
    place = group.add_mutually_exclusive_group()
    place.add_argument("--output", type=Path, metavar="PATH", help="a file; a directory where there are several")
    place.add_argument("--beside", action="store_true", help="a file beside each recording")
    group.add_argument("--force", action="store_true", help="replace files that exist")
    group.add_argument("--quiet", action="store_true", help="no bar, no notes; failures are still told")


def _add_hearers(group: argparse._ArgumentGroup) -> None:
    who = group.add_mutually_exclusive_group()
    who.add_argument("--server", type=server_address, default=DEFAULT_SERVER, metavar="URL", help=f"{DEFAULT_SERVER}")
    who.add_argument("--local", action="store_true", help="this process, with the environment's settings; no server")
    group.add_argument("--model", default="", help="with --local: MODEL_ID; else a name that the server knows")
    group.add_argument(
        "--jobs", type=_count, metavar="N", help=f"recordings under way at a time (default {_DEFAULT_JOBS})"
    )


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`. Raises `UsageError`, `NoServer` and what wrong settings raise."""
    _check(parsed)
    found, left_out = sources.find(parsed.files, recursive=parsed.recursive)
    if not parsed.quiet:
        _tell(left_out)
    if not found:
        complain("there is no recording in what was named")
        return Exit.FAILED
    outlet = _outlet(parsed, found)
    try:
        return asyncio.run(_run(parsed, found, outlet))
    except KeyboardInterrupt:
        if parsed.local:
            from asr_server.cli.local import end_now

            end_now()
        raise


def server_address(text: str) -> str:
    """An http(s) address, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is no address like {DEFAULT_SERVER}")
    return text.rstrip("/")


def _check(parsed: argparse.Namespace) -> None:
    if not parsed.stream:
        return
    if parsed.format != ResponseFormat.TEXT.value:
        raise UsageError("--stream is for --format text.")
    if parsed.output or parsed.beside:
        raise UsageError("--stream writes to standard output; leave out --output and --beside.")
    if (parsed.jobs or 1) > 1:
        raise UsageError("--stream takes one recording at a time; leave out --jobs.")


def _outlet(parsed: argparse.Namespace, found: Sequence[Source]) -> outlets.Outlet:
    response_format = ResponseFormat(parsed.format)
    if parsed.beside:
        return outlets.Filed(outlets.targets(found, None, response_format), force=parsed.force)
    if parsed.output is None:
        return outlets.Printed(found)
    place: Path = parsed.output
    if len(found) == 1 and not place.is_dir() and not _contains_directory(parsed.files):
        return outlets.Filed(outlets.single(found[0], place), force=parsed.force)
    if place.exists() and not place.is_dir():
        raise UsageError(f"--output {shown(str(place))} is a file, and there are several recordings.")
    return outlets.Filed(outlets.targets(found, place, response_format), force=parsed.force)


def _contains_directory(arguments: Sequence[str]) -> bool:
    """How many recordings a directory holds must not decide what `--output` means."""
    return any(Path(argument).is_dir() for argument in arguments)


async def _run(parsed: argparse.Namespace, found: Sequence[Source], outlet: outlets.Outlet) -> Exit:
    wish = Wish(
        response_format=ResponseFormat(parsed.format),
        language=parsed.language,
        prompt=parsed.prompt,
        hotwords=tuple(parsed.hotword),
        model=parsed.model,
        stream=parsed.stream,
    )
    jobs = 1 if parsed.stream else parsed.jobs or _DEFAULT_JOBS
    # Words that stream to a terminal are themselves what moves.
    bars = Bars(wanted=not (parsed.quiet or (parsed.stream and sys.stdout.isatty())))
    async with _hearer(parsed) as hearer:
        with bars:
            return await Batch(hearer, outlet, bars, wish).run(found, jobs)


def _hearer(parsed: argparse.Namespace) -> Hearer:
    if parsed.local:
        from asr_server.cli.local import Local, settings_for_one

        return Local(settings_for_one(parsed.model))
    from asr_server.cli.remote import Remote

    return Remote(parsed.server)


def _tell(left_out: Sequence[LeftOut]) -> None:
    for item in left_out[:_MOST_NAMED]:
        complain(f"left out: {shown(str(item.path))} ({item.reason})")
    if len(left_out) > _MOST_NAMED:
        complain(f"left out: {len(left_out) - _MOST_NAMED} more")


def _language(text: str) -> str:
    try:
        languages.normalize(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(error.message) from None
    return text


def _count(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)
