"""`asr-server live`: streams a file or the microphone to a server and shows the text while it is recognized."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asr_server.cli import arguments, formats, pcm
from asr_server.cli.failure import Exit, Failure, UsageError, complain, no_server, shown
from asr_server.cli.formats import Format
from asr_server.cli.live_view import FinalsWriter, InOrder, LineView, View, has_speakers
from asr_server.cli.parser import did_you_mean
from asr_server.client.live import ConnectionClosed, LiveClient, LiveError, LiveOptions, WebSocketException
from asr_server.core.audio import SAMPLE_RATE

EXAMPLES = (
    "asr-server live --file talk.mp3",
    "asr-server live --mic -l en                     Ctrl-C ends it, after the last words",
    "asr-server live --mic -o talk.srt --hotword Kubernetes",
    "asr-server live --mic --speakers                A: what one says, and B: what another says",
    "asr-server live --file call.wav --channels 2    the same of two people, each on a channel",
    "asr-server live --mic --server https://asr.example.org --api-key-file key.txt",
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments; 3 no server; 130 Ctrl-C before the end of a file"
# The default of WS_RESUME_S: a server keeps the session of a disconnected client for this long.
_RESUME_WITHIN_S = 30.0
# Close codes after which a new connection does not help: a frame is too long; another client resumed the session.
_FINAL_CLOSES = {1009, 4009}
_FORMATS = (Format.TEXT, *formats.CUE_FORMATS)


@dataclass(frozen=True, slots=True)
class LiveCommand:
    """The arguments of the command."""

    server: str
    file: Path | None  # None for the microphone
    options: LiveOptions = field(default_factory=LiveOptions)
    speed: float = 1.0  # times real time; 0 is as fast as possible
    device: str | None = None  # the microphone's name, None for the default
    # the file that gets the finals, in addition to the display; None writes them to standard output
    output: Path | None = None
    wanted: Format = Format.TEXT  # of the finals
    force: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
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
    parser.add_argument(
        "--channels",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: a person on each channel, A on the first, B on the second",
    )
    arguments.add_formats(parser, _FORMATS, several=False)
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the text to this file too, each line when it is final"
    )
    parser.add_argument("--force", action="store_true", help="replace the file if it exists")
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.set_defaults(run=_run)


def _speed(text: str) -> float:
    """0, or at least 0.01: slower than that, the first chunk would never come."""
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if speed != 0 and not 0.01 <= speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor a number from 0.01 on")
    return speed


def _run(parsed: argparse.Namespace) -> int:
    wanted = formats.chosen(parsed, _FORMATS)
    if len(wanted) > 1:
        raise UsageError("live writes one format.")
    if parsed.device and not parsed.mic:
        raise UsageError("--device is for --mic.")
    if parsed.channels > 1 and parsed.speakers:
        raise UsageError("--channels 2 contradicts --speakers: its channels are the speakers.")
    if parsed.channels > 1 and wanted[0] in formats.CUE_FORMATS:
        raise UsageError(
            "--channels 2 writes text alone: cues of people who speak at once are not in order before the end. "
            "'asr-server subtitles --speakers --channel-mode split' makes them of a recording."
        )
    options = LiveOptions(
        language=parsed.language or "",
        hotwords=tuple(parsed.hotword),
        token=arguments.key(parsed),
        words="fast" if wanted[0] in formats.CUE_FORMATS else "",
        speakers=parsed.speakers,
        channels=parsed.channels,
    )
    return live(
        LiveCommand(
            arguments.server(parsed),
            parsed.file,
            options,
            parsed.speed,
            parsed.device,
            Path(parsed.output) if parsed.output else None,
            wanted[0],
            parsed.force,
        )
    )


def live(command: LiveCommand) -> int:
    """Returns an `Exit`. Ctrl-C is the orderly end of a microphone. Raises `NoServer`."""
    try:
        chunks = _file(command) if command.file else _microphone(command.device, command.options.channels)
        with _connect(command) as client, _view(command) as view:
            ended = _stream(client, chunks, view, can_wait=command.file is not None)
            if client.speakers_lost:
                complain("live", client.speakers_lost)
    except BrokenPipeError:  # of standard output, not of the connection
        raise
    except (OSError, LiveError, WebSocketException, _SourceError) as error:
        complain("live", str(error))
        return Exit.FAILED
    return Exit.DONE if ended or command.file is None else Exit.INTERRUPTED


def _connect(command: LiveCommand) -> LiveClient:
    try:
        return LiveClient(command.server, command.options)
    except OSError as error:
        raise no_server(command.server) from error


@contextmanager
def _view(command: LiveCommand) -> Iterator[View]:
    """Make what shows the lines and writes the finals. Raises `OSError`, and `_SourceError` for a file that exists."""
    timed = command.options.words != ""
    with ExitStack() as stack:
        views: list[LineView | FinalsWriter] = []
        if command.output is not None:
            try:
                file = stack.enter_context(command.output.open("w" if command.force else "x", encoding="utf-8"))
            except FileExistsError:
                raise _SourceError(
                    f"output_exists: {shown(str(command.output))} exists; --force replaces it."
                ) from None
            views.append(FinalsWriter(file, command.wanted))
        if command.output is not None or command.wanted is Format.TEXT:
            views.append(LineView(sys.stdout))
        else:
            views.append(FinalsWriter(sys.stdout, command.wanted))
        shown_in = [_in_order(view, timed=timed) for view in views] if command.options.speakers else views
        for view in shown_in:
            stack.callback(view.close)
        yield View(shown_in, timed, command.options.channels)


def _in_order(view: LineView | FinalsWriter, *, timed: bool) -> InOrder:
    """A display need not wait until no label will change; what is written can."""
    if isinstance(view, LineView):
        return InOrder(view, has_speakers)
    return InOrder(view, lambda line: line.speakers_settled and bool(line.words or not timed))


class _SourceError(Exception):
    """The audio cannot be had. The message says why and what to do."""


def _stream(client: LiveClient, chunks: Iterator[bytes], view: View, *, can_wait: bool) -> bool:
    """Run until the last line. Returns False after Ctrl-C; the text of all audio sent until then is shown.

    `can_wait`: whether the source keeps its audio until it is asked for it.
    """
    sender = _Sender(client, chunks, can_wait=can_wait)
    sender.start()
    try:
        _show(client, view, sender.sent)
    except KeyboardInterrupt:
        sender.stop.set()
        _show(client, view, sender.sent)
        return False
    if isinstance(sender.error, _SourceError):
        raise sender.error
    if sender.error is not None:
        raise _SourceError(f"the microphone ended: {sender.error}")
    return True


def _show(client: LiveClient, view: View, sent: threading.Event) -> None:
    """Show lines until all audio is transcribed; reconnect where the connection breaks."""
    while True:
        try:
            for line in client.lines():
                if view.show(line):
                    return
        except ConnectionClosed as cut:
            view.clear()
            _reconnect(client, cut)
            if sent.is_set():  # the flush may not have arrived; a second one does no harm
                with suppress(ConnectionClosed):
                    client.flush()
        else:
            raise LiveError("connection_lost", "the server ended the session before all audio was transcribed")


def _reconnect(client: LiveClient, cut: ConnectionClosed) -> None:
    """Resume the session, as long as a server may still have it. Raises the last error."""
    if cut.rcvd is not None and cut.rcvd.code in _FINAL_CLOSES:
        raise cut
    print("The connection broke; reconnecting.", file=sys.stderr)
    client.resume_within(_RESUME_WITHIN_S)


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
        except Exception as error:  # of the sound library, for a microphone that was unplugged
            self.error = error
        self.sent.set()
        with suppress(ConnectionClosed):  # the reading thread gets the same error
            self._client.flush()

    def _send(self) -> None:
        for chunk in self._chunks:
            while self._can_wait and not self._client.has_room and not self.stop.is_set():
                time.sleep(pcm.CHUNK_MS / 1000)
            if self.stop.is_set():
                return
            try:
                self._client.send(chunk)
            except ConnectionClosed:
                # The client buffers a limited amount for the resume, so a file must not be sent faster than speech.
                time.sleep(pcm.CHUNK_MS / 1000)


def _file(command: LiveCommand) -> Iterator[bytes]:
    path, channels = command.file, command.options.channels
    assert path is not None
    try:
        return pcm.paced(asyncio.run(pcm.decoded(path, channels)), command.speed, channels)
    except Failure as failure:
        raise _SourceError(f"{shown(str(path))}: {failure.message}") from None


def _microphone(device: str | None, channels: int) -> Iterator[bytes]:
    try:
        import sounddevice
    except (ImportError, OSError):  # OSError: the package is there, the PortAudio library is not
        raise _SourceError(
            "the microphone needs the package 'sounddevice' (pip install sounddevice) and PortAudio; "
            "or stream a recording: asr-server live --file recording.wav"
        ) from None
    return _record(sounddevice, device, channels)


def _record(sounddevice: Any, device: str | None, channels: int) -> Iterator[bytes]:
    number = int(device) if device and device.isdecimal() else device
    try:
        stream = sounddevice.RawInputStream(samplerate=SAMPLE_RATE, channels=channels, dtype="int16", device=number)
    except (ValueError, sounddevice.PortAudioError) as error:
        microphones = [
            found["name"] for found in sounddevice.query_devices() if found["max_input_channels"] >= channels
        ]
        there = ", ".join(microphones) or "none"
        raise _SourceError(
            f"the microphone cannot be used ({error}). There are: {there}.{did_you_mean(device or '', microphones)}"
        ) from None
    print("Listening; Ctrl-C ends.", file=sys.stderr)
    with stream:
        while True:
            data, _ = stream.read(pcm.CHUNK_SAMPLES)
            yield bytes(data)
