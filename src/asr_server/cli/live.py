"""`asr-server live`: streams a file or the microphone to a server and shows the text while it is recognized."""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, TextIO

from asr_server.cli import arguments, formats, recording_files
from asr_server.cli.failure import CommandError, Exit, UsageError, complain, no_server, shown
from asr_server.cli.formats import Format
from asr_server.cli.parser import did_you_mean
from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions, WebSocketException
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import Word
from asr_server.subtitle.cue_segmentation import Passage, cues
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import scripts, words

EXAMPLES = (
    "asr-server live --file talk.mp3",
    "asr-server live --mic -l en                     Ctrl-C ends it, after the last words",
    "asr-server live --mic -o talk.srt --hotword Kubernetes",
    "asr-server live --mic --speakers                A: what one says, and B: what another says",
    "asr-server live --mic --server https://asr.example.org --api-key-file key.txt",
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments; 3 no server; 130 Ctrl-C before the end of a file"
# The default of WS_RESUME_S: a server keeps the session of a disconnected client for this long.
_RESUME_WITHIN_S = 30.0
# Close codes after which a new connection does not help: a frame is too long; another client resumed the session.
_FINAL_CLOSES = {1009, 4009}
_FORMATS = (Format.TEXT, *formats.CUE_FORMATS)
CHUNK_MS = 100
CHUNK_SAMPLES = SAMPLE_RATE * CHUNK_MS // 1000
_MAX_AUDIO_S = 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, _CODES)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, help="a recording in any container")
    source.add_argument("--mic", action="store_true", help="the microphone (needs the package sounddevice)")
    parser.add_argument("--device", metavar="NAME", help="with --mic: name or number of the microphone")
    parser.add_argument(
        "--speed", type=_speed, default=1.0, help="times real time for a file; 0 is as fast as possible"
    )
    arguments.add_language(parser)
    arguments.add_hotwords(parser)
    parser.add_argument("--speakers", action="store_true", help="tell speakers apart: A, B and so on")
    arguments.add_formats(parser, _FORMATS, several=False)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the text to this file too, each line when it is final"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.set_defaults(run=_run)


def _speed(text: str) -> float:
    """Return 0, or a speed of at least 0.01: at a lower one, more than 10 s would pass between two chunks."""
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if speed != 0 and not 0.01 <= speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor a number from 0.01 on")
    return speed


def _run(parsed: argparse.Namespace) -> int:
    """Return an `Exit`. With a microphone, Ctrl-C is a normal end. Raises `NoServer` and `UsageError`."""
    wanted = formats.chosen(parsed, _FORMATS)
    if len(wanted) > 1:
        raise UsageError("live writes one format.")
    if parsed.device and not parsed.mic:
        raise UsageError("--device is for --mic.")
    options = LiveOptions(
        language=parsed.language or "",
        hotwords=tuple(parsed.hotword),
        token=arguments.key(parsed),
        words="fast" if wanted[0] in formats.CUE_FORMATS else "",
        speakers=parsed.speakers,
    )
    try:
        chunks = paced(asyncio.run(decoded(parsed.file)), parsed.speed) if parsed.file else _microphone(parsed.device)
        with _connect(arguments.server(parsed), options) as client, _writers(parsed, wanted[0]) as writers:
            ended = _stream(client, chunks, writers, can_wait=not parsed.mic)
            if client.speakers_lost:
                complain("live", client.speakers_lost)
    except BrokenPipeError:  # of standard output, not of the connection
        raise
    except InvalidInput as error:
        raise CommandError(f"{shown(str(parsed.file))}: {error.message}") from None
    except (OSError, LiveError, WebSocketException) as error:
        raise CommandError(str(error)) from None
    return Exit.DONE if ended or parsed.mic else Exit.INTERRUPTED


def _connect(server: str, options: LiveOptions) -> LiveClient:
    try:
        return LiveClient(server, options)
    except OSError as error:
        raise no_server(server) from error


@contextmanager
def _writers(parsed: argparse.Namespace, wanted: Format) -> Iterator[list[FinalsWriter]]:
    """Yield the writers that show and store the finals. Raises `OSError`, and `Failure` for a file that exists."""
    with ExitStack() as stack:
        writers = []
        if parsed.output:
            try:
                file = stack.enter_context(open(parsed.output, "w" if parsed.force else "x", encoding="utf-8"))
            except FileExistsError:
                raise recording_files.exists(parsed.output) from None
            writers.append(FinalsWriter(file, wanted, speakers=parsed.speakers))
            wanted = Format.TEXT
        if wanted is Format.TEXT:
            writers.append(LineView(sys.stdout))
        else:
            writers.append(FinalsWriter(sys.stdout, wanted, speakers=parsed.speakers))
        for writer in writers:
            stack.callback(writer.close)
        yield writers


def _stream(client: LiveClient, chunks: Iterator[bytes], writers: Sequence[FinalsWriter], *, can_wait: bool) -> bool:
    """Run until the last line. Returns False after Ctrl-C; the text of all audio sent until then is shown.

    `can_wait`: whether the source keeps its audio until it is read.
    """
    sender = _Sender(client, chunks, can_wait=can_wait)
    sender.start()
    try:
        _show(client, writers, sender.sent)
    except KeyboardInterrupt:
        sender.stop.set()
        _show(client, writers, sender.sent)
        return False
    if isinstance(sender.error, CommandError):
        raise sender.error
    if sender.error is not None:
        raise CommandError(f"the microphone ended: {sender.error}")
    return True


def _show(client: LiveClient, writers: Sequence[FinalsWriter], sent: threading.Event) -> None:
    """Show lines until all audio is transcribed; reconnect if the connection breaks."""
    while True:
        try:
            for line in client.lines():
                for writer in writers:
                    writer.show(line)
                if line.ending == "flush" and all(writer.is_complete(line) for writer in writers):
                    return
        except ConnectionClosed as cut:
            for writer in writers:
                writer.clear()
            if cut.rcvd is not None and cut.rcvd.code in _FINAL_CLOSES:
                raise
            print("The connection broke; reconnecting.", file=sys.stderr)
            try:  # as long as a server may still have the session
                client.resume_within(_RESUME_WITHIN_S)
            finally:
                if client.last_words is not None:  # no other server will transcribe them
                    for writer in writers:
                        writer.show(client.last_words)
            if sent.is_set():  # the flush may not have arrived; a second one does no harm
                with suppress(ConnectionClosed):
                    client.flush()
        else:
            raise LiveError("connection_lost", "the server ended the session before all audio was transcribed")


class _Sender(threading.Thread):
    """Sends audio until the source ends or fails (`error`) or `stop` is set, then flushes; the answer ends the
    command."""

    def __init__(self, client: LiveClient, chunks: Iterator[bytes], *, can_wait: bool) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._chunks = chunks
        self._can_wait = can_wait
        self.stop, self.sent = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._send()
        except Exception as error:  # from the sound library, for a microphone that was unplugged
            self.error = error
        self.sent.set()
        with suppress(ConnectionClosed):  # the reading thread gets the same error
            self._client.flush()

    def _send(self) -> None:
        for chunk in self._chunks:
            while self._can_wait and not self._client.has_room and not self.stop.is_set():
                time.sleep(CHUNK_MS / 1000)
            if self.stop.is_set():
                return
            try:
                self._client.send(chunk)
            except ConnectionClosed:
                # The client buffers a limited amount for the resume, so a file must not be sent faster than speech.
                time.sleep(CHUNK_MS / 1000)


def _microphone(device: str | None) -> Iterator[bytes]:
    try:
        import sounddevice
    except (ImportError, OSError):  # OSError: the package is there, the PortAudio library is not
        raise CommandError(
            "the microphone needs the package 'sounddevice' (pip install sounddevice) and PortAudio; "
            "or stream a recording: asr-server live --file recording.wav"
        ) from None
    return _record(sounddevice, device)


def _record(sounddevice: Any, device: str | None) -> Iterator[bytes]:
    number = int(device) if device and device.isdecimal() else device
    try:
        stream = sounddevice.RawInputStream(samplerate=SAMPLE_RATE, channels=1, dtype="int16", device=number)
    except (ValueError, sounddevice.PortAudioError) as error:
        microphones = [found["name"] for found in sounddevice.query_devices() if found["max_input_channels"] >= 1]
        there = ", ".join(microphones) or "none"
        raise CommandError(
            f"the microphone cannot be used ({error}). There are: {there}.{did_you_mean(device or '', microphones)}"
        ) from None
    print("Listening; Ctrl-C ends.", file=sys.stderr)
    with stream:
        while True:
            data, _ = stream.read(CHUNK_SAMPLES)
            yield bytes(data)


_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"


class FinalsWriter:
    """Writes each final once and in order, as soon as it has its speakers and, for cues, the times of its words."""

    def __init__(self, out: TextIO, wanted: Format = Format.TEXT, *, speakers: bool = False) -> None:
        self._out = out
        self._wanted = wanted
        self._speakers = speakers
        self._head = formats.render([], wanted) if wanted in formats.CUE_FORMATS else ""
        self._waiting: dict[int, Line] = {}
        self._passed = self._timed = 0  # the last utterance that was written, and the last that has times
        self._cues = 0
        self._write(self._head)

    def show(self, line: Line) -> None:
        if not line.final:
            self.show_open(line)
        elif line.text and line.utterance > self._passed:
            self._waiting[line.utterance] = line
            self._timed = line.utterance if line.words else self._timed
            while self._waiting and self.is_ready(next(iter(self._waiting.values()))):
                self._pass_first()

    def show_open(self, line: Line) -> None:
        """Do nothing: only finals are written."""

    def is_ready(self, line: Line) -> bool:
        """Return True if the final will not change. After a broken connection a final may have no times; this is known
        once a later one has them."""
        timed = self._wanted is Format.TEXT or line.utterance <= self._timed
        return timed and (line.speakers_settled or not self._speakers)

    def is_complete(self, line: Line) -> bool:
        return not line.text or self._wanted is Format.TEXT or bool(line.words)

    def clear(self) -> None:
        """Do nothing: no open line is shown."""

    def close(self) -> None:
        while self._waiting:
            self._pass_first()

    def _pass_first(self) -> None:
        self._passed = next(iter(self._waiting))
        line = self._waiting.pop(self._passed)
        if self._wanted is Format.TEXT:
            turns = [(run.speaker or "", run.text.strip()) for run in line.speakers]
            self._write(f"{scripts.dialogue(turns) or line.text}\n")
        else:
            start_ms, end_ms = round(1000 * line.start_s), round(1000 * line.end_s)
            timed = cues(_passages(line), CueConfig(), end_ms) if line.words else [Cue(start_ms, end_ms, line.text)]
            self._write(formats.render(timed, self._wanted, self._cues + 1).removeprefix(self._head))
            self._cues += len(timed)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class LineView(FinalsWriter):
    """Shows the open line too, with committed words in bold, if the output is a terminal."""

    def show_open(self, line: Line) -> None:
        if self._out.isatty():
            self._write(_CLEAR + _fit(line, shutil.get_terminal_size().columns - 1))

    def is_ready(self, line: Line) -> bool:
        """Return True once every run has a speaker: a display need not wait until no label will change."""
        return line.speakers_settled or all(run.speaker is not None for run in line.speakers)

    def clear(self) -> None:
        """Remove the open line, so that a message or a final can take its place."""
        if self._out.isatty():
            self._write(_CLEAR)

    def _pass_first(self) -> None:
        self.clear()
        super()._pass_first()


def _passages(line: Line) -> list[Passage]:
    """Return the words of a line by speaker."""
    if not line.speakers:
        return [Passage(line.text, line.words)]
    spoken = [word.text for word in line.words]
    ends = accumulate(len(gap) + len(word) for gap, word in zip(words.gaps(line.text, spoken), spoken, strict=True))
    run_ends = list(accumulate(len(run.text) for run in line.speakers))
    of_runs: list[list[Word]] = [[] for _ in run_ends]
    for word, end in zip(line.words, ends, strict=True):
        of_runs[min(bisect_left(run_ends, end), len(of_runs) - 1)].append(word)
    passages = zip(line.speakers, of_runs, strict=True)
    return [Passage(run.text.strip(), own, run.speaker or "") for run, own in passages if own]


def _fit(line: Line, columns: int) -> str:
    """Return the end of the line, as much as fits: new words come at the end."""
    tentative = line.tentative[-columns:]
    room = columns - len(tentative)
    committed = line.committed[-room:] if room else ""
    return f"{_BOLD}{committed}{_PLAIN}{tentative}"


async def decoded(path: Path) -> bytes:
    """Decode a recording to little-endian int16, mixed to one channel.

    Raises `InvalidInput`, and `OSError` if the file cannot be opened.
    """
    import numpy as np

    from asr_server.audio.decode import Decoder
    from asr_server.audio.decoder_wire import DecodeLimits

    decoder = Decoder(DecodeLimits(max_audio_s=_MAX_AUDIO_S))
    try:
        with path.open("rb") as file:
            async with aclosing(decoder.stream(file)) as blocks:
                audio = np.concatenate([block async for block in blocks])
    finally:
        await decoder.close()
    audio /= max(1.0, float(np.abs(audio).max()))  # a recording with a peak above 1 is scaled down as a whole
    return bytes((audio * 32_768).clip(-32_768, 32_767).round().astype("<i2").tobytes())


def paced(pcm: bytes, speed: float) -> Iterator[bytes]:
    """Yield chunks of 100 ms at `speed` times real time, without pauses if `speed` is 0."""
    began_s, chunk_bytes = time.monotonic(), 2 * CHUNK_SAMPLES
    for number, at in enumerate(range(0, len(pcm), chunk_bytes)):
        if speed:
            time.sleep(max(0.0, began_s + number * CHUNK_MS / 1000 / speed - time.monotonic()))
        yield pcm[at : at + chunk_bytes]
