"""`asr-server speak`: speaks a text with a server or a worker of this command, and writes the audio as it is made."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from asr_server.cli import arguments, formats, recording_files
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.given_text import STANDARD, given_text
from asr_server.cli.progress import ProgressBars
from asr_server.core.audio import SPEECH_RATE, WAV_HEADER_BYTES, wav_header
from asr_server.features.speech_output.encoding.formats import MAX_SPEED, MIN_SPEED, STREAMED_FORMATS, SpeechFormat

if TYPE_CHECKING:
    from asr_server.client.speech import SpeechFields

EXAMPLES = (
    'asr-server speak "Dinner is ready." -o dinner.mp3',
    "asr-server speak chapter.txt --voice nova --speed 1.2 -o chapter.opus",
    "asr-server translate talk.mp3 --to de | asr-server speak - --language de | aplay",
    "asr-server speak --list-voices",
    'asr-server speak "No server is needed." --local -o speech.flac',
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments or settings; 3 no server; 130 interrupted"
# The formats by file ending: the names of the formats, and two further endings.
_ENDINGS = {**{f".{one}": one for one in STREAMED_FORMATS}, ".ogg": SpeechFormat.OPUS, ".raw": SpeechFormat.PCM}

Write = Callable[[bytes], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, _CODES)
    parser.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help="the text, or the name of a file that holds it, or - for standard input (default: what is piped in)",
    )
    how = parser.add_argument_group("speech")
    how.add_argument("--voice", help="one of --list-voices (default: alloy)")
    how.add_argument(
        "-l", "--language", type=arguments.target_language, help="code or name (default: by the text's script)"
    )
    how.add_argument(
        "--speed", type=_speed, help=f"{MIN_SPEED:g} to {MAX_SPEED:g} times the usual one, at the same pitch"
    )
    how.add_argument("--instructions", metavar="TEXT", help="how to speak, for engines that follow it")
    how.add_argument(
        "--seed",
        type=partial(arguments.within, least=0, most=2**63 - 1),
        metavar="N",
        help="another one for another answer, where the engine samples",
    )
    how.add_argument("--list-voices", action="store_true", help="print the voices, and speak nothing")
    file = "a file such as speech.mp3, or - for standard output (default: a pipe)"
    arguments.add_file_output(parser, STREAMED_FORMATS, file, "default: by the name of --output, or wav")
    arguments.add_worker(parser.add_argument_group("server"))
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> None:
    if parsed.list_voices:
        asyncio.run(_list(parsed))
    else:
        _speak(parsed)


def _speak(parsed: argparse.Namespace) -> None:
    target = _target(parsed.output)
    wanted = formats.of_file(parsed.format, target, _ENDINGS, SpeechFormat.WAV)
    text = given_text(parsed.text)
    # Without a file there is no bar: it would mix with the terminal output of a player that reads the pipe.
    bars = ProgressBars(wanted=target is not None and not parsed.quiet)
    with _opened(target, wanted, replace=parsed.force) as write, bars, bars.bar("speaking"):
        asyncio.run(_stream(parsed, text, wanted, write))


async def _stream(parsed: argparse.Namespace, text: str, wanted: SpeechFormat, write: Write) -> None:
    from asr_server.cli.backends import backend, server_of, while_full

    async with backend(server_of(parsed)) as client, client.asking():

        async def stream() -> None:
            async with aclosing(client.stream(text, **_fields(parsed, wanted))) as pieces:
                async for data in pieces:
                    write(data)

        await while_full(stream)  # a full server refuses the request before the first byte


async def _list(parsed: argparse.Namespace) -> None:
    from asr_server.cli.backends import backend, server_of

    async with backend(server_of(parsed)) as client, client.asking():
        for voice in await client.voices():
            means = f"{voice.alias_of}, {voice.description}" if voice.alias_of else voice.description
            print(f"{shown(voice.id):10}  {shown(means)}")


def _fields(parsed: argparse.Namespace, wanted: SpeechFormat) -> SpeechFields:
    """Return the fields that were given; the server has defaults for the others."""
    names = ("voice", "language", "speed", "instructions", "seed")
    given = {name: value for name in names if (value := getattr(parsed, name)) is not None}
    return cast("SpeechFields", {"format": wanted.value, **given})


def _target(output: str | None) -> Path | None:
    """Return the file; None for standard output. Raises `UsageError`."""
    if output is not None and output != STANDARD:
        return Path(output)
    if sys.stdout.isatty():
        raise UsageError(
            "a terminal plays no audio. Say --output speech.mp3, or pipe it into a player: "
            "asr-server speak TEXT | aplay"
        )
    return None


@contextmanager
def _opened(target: Path | None, wanted: SpeechFormat, *, replace: bool) -> Iterator[Write]:
    """Yield the write function of standard output, or of a file that appears once it is complete. Raises `Failure`."""
    if target is None:
        yield _write_out
        return
    with recording_files.new_file(target, replace=replace) as file:
        yield file.write
        if wanted is SpeechFormat.WAV:  # the header of a stream does not state its length
            size = file.tell() - WAV_HEADER_BYTES
            file.seek(0)
            file.write(wav_header(size, SPEECH_RATE))


def _write_out(data: bytes) -> int:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return len(data)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {MIN_SPEED:g} to {MAX_SPEED:g}")
    return speed
