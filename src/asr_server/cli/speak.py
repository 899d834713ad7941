"""`asr-server speak`: a text to audio, by a server or in this process, written while it is made."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_server.cli import arguments, recording_files
from asr_server.cli.failure import Exit, Failure, UsageError, complain, no_server, shown
from asr_server.cli.given_text import STANDARD, given_text
from asr_server.cli.progress import ProgressBars
from asr_server.core.audio import SPEECH_RATE, WAV_HEADER_BYTES, wav_header
from asr_server.features.speech_output.encoding.formats import MAX_SPEED, MIN_SPEED, STREAMED_FORMATS, SpeechFormat

if TYPE_CHECKING:
    from asr_server.app import Machinery
    from asr_server.client.speech import SpeakingVoice, SpeechFields
    from asr_server.features.speech_output.requests import SpeechEvent
    from asr_server.features.speech_output.synthesis import SpeechProcessor

EXAMPLES = (
    'asr-server speak "Dinner is ready." -o dinner.mp3',
    "asr-server speak chapter.txt --voice nova --speed 1.2 -o chapter.opus",
    "asr-server translate talk.mp3 --to de | asr-server speak - --language de | aplay",
    "asr-server speak --list-voices",
    'asr-server speak "No server is needed." --local -o speech.flac',
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments or settings; 3 no server; 130 interrupted"
# Endings of files that mean a format, in addition to the names of the formats.
_ENDINGS = {**{f".{one}": one for one in STREAMED_FORMATS}, ".ogg": SpeechFormat.OPUS, ".raw": SpeechFormat.PCM}

Write = Callable[[bytes], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    how.add_argument("--seed", type=_seed, metavar="N", help="another one for another answer, where the engine samples")
    how.add_argument("--list-voices", action="store_true", help="print the voices, and speak nothing")
    output = parser.add_argument_group("output")
    output.add_argument(
        "-o", "--output", metavar="FILE", help="a file such as speech.mp3, or - for standard output (default: a pipe)"
    )
    output.add_argument(
        "-f",
        "--format",
        choices=[one.value for one in STREAMED_FORMATS],
        help="default: by the name of --output, or wav",
    )
    output.add_argument("--force", action="store_true", help="replace the file if it exists")
    output.add_argument("--quiet", action="store_true", help="report failures only")
    where = parser.add_argument_group("server")
    who = where.add_mutually_exclusive_group()
    arguments.add_server(who)
    who.add_argument("--local", action="store_true", help="no server: speak in this process, by the environment")
    arguments.add_key(where)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from asr_server.client.connection import FileError, ServerUnreachable

    try:
        if parsed.list_voices:
            _list(parsed)
        else:
            _speak(parsed)
    except ServerUnreachable as error:
        raise no_server(arguments.server(parsed), ", or run without one (--local)") from error
    except (FileError, Failure) as error:
        complain("speak", f"{error.code}: {error.message}")
        return Exit.FAILED
    return Exit.DONE


def _speak(parsed: argparse.Namespace) -> None:
    target = _target(parsed.output)
    wanted = _format(parsed.format, target)
    text, fields = given_text(parsed.text), _fields(parsed, wanted)
    # On a terminal a bar would write into what a player shows.
    bars = ProgressBars(wanted=target is not None and not parsed.quiet)
    with _opened(target, wanted, replace=parsed.force) as write, bars, bars.bar("speaking"):
        if parsed.local:
            with _local_failures():
                ignored = asyncio.run(_speak_here(text, fields, write))
        else:
            ignored = _by_server(parsed, text, fields, write)
    if ignored and not parsed.quiet:
        complain("speak", f"without effect on this voice: {', '.join(ignored)}")


def _by_server(parsed: argparse.Namespace, text: str, fields: SpeechFields, write: Write) -> tuple[str, ...]:
    """Waits while the server is full, which it says before the first byte."""
    from asr_server.cli.backends import MAX_WAIT_S, wait_s
    from asr_server.client.connection import FileError
    from asr_server.client.speech import SpeechClient

    left_s = MAX_WAIT_S
    with SpeechClient(arguments.server(parsed), key=arguments.key(parsed)) as client:
        while True:
            try:
                for data in client.stream(text, **fields):
                    write(data)
                return ()
            except FileError as error:
                left_s -= wait_s(error)
                if left_s < 0:
                    raise
                time.sleep(wait_s(error))


def _list(parsed: argparse.Namespace) -> None:
    for voice in _voices(parsed):
        means = f"{voice.alias_of}, {voice.description}" if voice.alias_of else voice.description
        print(f"{shown(voice.id):10}  {shown(means)}")


def _voices(parsed: argparse.Namespace) -> list[SpeakingVoice]:
    if parsed.local:
        with _local_failures():
            return asyncio.run(_voices_here())
    from asr_server.client.speech import SpeechClient

    with SpeechClient(arguments.server(parsed), key=arguments.key(parsed)) as client:
        return client.voices()


def _fields(parsed: argparse.Namespace, wanted: SpeechFormat) -> SpeechFields:
    """Return the fields that were given: the server has defaults for the others."""
    fields: SpeechFields = {"format": wanted.value}
    if parsed.voice is not None:
        fields["voice"] = parsed.voice
    if parsed.language is not None:
        fields["language"] = parsed.language
    if parsed.speed is not None:
        fields["speed"] = parsed.speed
    if parsed.instructions is not None:
        fields["instructions"] = parsed.instructions
    if parsed.seed is not None:
        fields["seed"] = parsed.seed
    return fields


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


def _format(given: str | None, target: Path | None) -> SpeechFormat:
    if given is not None:
        return SpeechFormat(given)
    if target is None:
        return SpeechFormat.WAV
    found = _ENDINGS.get(target.suffix.lower())
    if found is None:
        raise UsageError(f"--output {shown(str(target))} ends like no format; say --format, or {', '.join(_ENDINGS)}.")
    return found


@contextmanager
def _opened(target: Path | None, wanted: SpeechFormat, *, replace: bool) -> Iterator[Write]:
    """Standard output, or a file that is there when all of it is. Raises `Failure`."""
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


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2^63")
    return int(text)


# -- `--local`: what a server speaks with, built in this process for one text ------------------------------------------


async def _speak_here(text: str, fields: SpeechFields, write: Write) -> tuple[str, ...]:
    """Write the audio as it is made. Returns the fields that the engine has no use for."""
    from asr_server.features.speech_output.requests import AudioChunk, SpeechRequest

    given: dict[str, Any] = {**fields}
    audio_format = SpeechFormat(given.pop("format"))
    request = SpeechRequest(text=text, format=audio_format, **given)

    async def emit(event: SpeechEvent) -> None:
        if isinstance(event, AudioChunk):
            write(event.data)

    built, processor = _machinery()
    try:
        prepared = processor.prepare(request)
        await processor.speak(prepared, emit)
    finally:
        await built.close()
    return prepared.ignored


async def _voices_here() -> list[SpeakingVoice]:
    """Return the voices of the engine, and OpenAI's names for them."""
    from asr_server.client.speech import voice_of
    from asr_server.features.speech_output.voice_list import voice_list

    built, processor = _machinery()
    try:
        listed = voice_list([client.traits for client in processor.engines.named])
    finally:
        await built.close()
    return [voice_of(voice.model_dump()) for voice in listed.data]


def _machinery() -> tuple[Machinery, SpeechProcessor]:
    """Return the parts of a server, and the one that speaks. Raises `PlanError` and `SettingsError`."""
    from asr_server import feature_list
    from asr_server.app import machinery
    from asr_server.cli.backends import local_settings
    from asr_server.core import logger
    from asr_server.features.speech_output.synthesis import SpeechProcessor

    settings = local_settings(None)
    logger.configure(settings.log_level, as_json=False)
    built = machinery(settings, feature_list.resolve(settings))
    services = (service for parts in built.features for service in parts.services)
    return built, next(service for service in services if isinstance(service, SpeechProcessor))


@contextmanager
def _local_failures() -> Iterator[None]:
    """Raise `UsageError` for settings with which nothing speaks, and `Failure` for other errors."""
    from asr_server.core.errors import AsrError, ModelUnavailable, SpeechUnavailable

    try:
        yield
    except (SpeechUnavailable, ModelUnavailable) as error:
        raise UsageError(error.message) from error
    except AsrError as error:
        raise Failure(error.code, error.message) from error
