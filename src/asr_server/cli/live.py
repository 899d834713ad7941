"""`asr-server live`: streams a file or a microphone to a server and shows the words as they become certain."""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from asr_server.cli import arguments, pcm
from asr_server.cli.failure import Exit, Failure, complain, no_server, shown
from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions, WebSocketException
from asr_server.core.audio import SAMPLE_RATE

EXAMPLES = (
    "asr-server live --file talk.mp3",
    "asr-server live --mic --language en             Ctrl-C ends it, after the last words",
    "asr-server live --mic --server https://asr.example.org --api-key-file key.txt",
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments; 3 no server; 130 a file was left with Ctrl-C"
_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"
# For so long a server keeps the session of a client that was cut off, unless WS_RESUME_S says otherwise there.
_BACK_WITHIN_S = 30.0
_TRY_EVERY_S = 0.5
# Trying again would not help: a frame that is too long; someone else has taken the session over.
_FINAL_CLOSES = {1009, 4009}
_FINAL_CODES = {"session_not_found", "audio_lost"}


@dataclass(frozen=True, slots=True)
class LiveCommand:
    """What the command line said. `file`: None for the microphone. `speed`: times real time, 0 as fast as it goes.
    `key`: for a server that has keys."""

    server: str
    file: Path | None
    language: str = ""
    speed: float = 1.0
    key: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    arguments.explain(parser, EXAMPLES, _CODES)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, help="a recording in any container")
    source.add_argument("--mic", action="store_true", help="the microphone (needs the package sounddevice)")
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.add_argument(
        "--language", type=arguments.language, default="", help="language code or name; found out if left out"
    )
    parser.add_argument("--speed", type=_speed, default=1.0, help="times real time for a file; 0 is as fast as it goes")
    parser.set_defaults(run=_run)


def _speed(text: str) -> float:
    """Not so slow that no piece would ever come."""
    try:
        speed = float(text)
    except ValueError:
        speed = -1.0
    if speed != 0 and not 0.01 <= speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor a number from 0.01 on")
    return speed


def _run(parsed: argparse.Namespace) -> int:
    return live(LiveCommand(parsed.server, parsed.file, parsed.language, parsed.speed, arguments.key(parsed)))


def live(command: LiveCommand) -> int:
    """Returns an `Exit`; Ctrl-C is how a microphone is ended. Raises `NoServer`."""
    try:
        chunks = _file(command.file, command.speed) if command.file else _microphone()
        with _connected(command) as client:
            ended = _stream(client, chunks, Screen(sys.stdout))
    except BrokenPipeError:  # of our own output
        raise
    except (OSError, LiveError, WebSocketException, _NoSource) as error:
        complain("live", str(error))
        return Exit.FAILED
    return Exit.DONE if ended or command.file is None else Exit.INTERRUPTED


def _connected(command: LiveCommand) -> LiveClient:
    try:
        return LiveClient(command.server, LiveOptions(language=command.language, token=command.key))
    except OSError as error:
        raise no_server(command.server) from error


class _NoSource(Exception):
    """There is nothing to listen to; the message says why and what to do."""


class Screen:
    """The line that is being spoken, committed words in bold; finals alone when the output is no terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()

    def show(self, line: Line) -> None:
        """Show a line in place of the open one."""
        if line.final:
            if line.text:
                self._write((_CLEAR if self._terminal else "") + line.text + "\n")
        elif self._terminal:
            self._write(_CLEAR + _fitted(line, shutil.get_terminal_size().columns - 1))

    def clear(self) -> None:
        """Take the open line away, to say something else in its place."""
        if self._terminal:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _fitted(line: Line, columns: int) -> str:
    """The end of the line that fits: what is new is at the end."""
    tentative = line.tentative[-columns:]
    room = columns - len(tentative)
    committed = line.committed[-room:] if room else ""
    return f"{_BOLD}{committed}{_PLAIN}{tentative}"


def _stream(client: LiveClient, chunks: Iterator[bytes], screen: Screen) -> bool:
    """Until the last line; False when Ctrl-C ended it, which leaves out no word that was sent."""
    sender = _Sender(client, chunks)
    sender.start()
    try:
        _show(client, screen, sender.sent)
    except KeyboardInterrupt:
        sender.leaving.set()
        _show(client, screen, sender.sent)
        return False
    if sender.error is not None:
        raise _NoSource(f"the microphone ended: {sender.error}")
    return True


def _show(client: LiveClient, screen: Screen, sent: threading.Event) -> None:
    """Until all that was sent is heard, whatever becomes of the connection meanwhile."""
    while True:
        try:
            for line in client.lines():
                screen.show(line)
                if line.ending == "flush":
                    return
        except ConnectionClosed as cut:
            screen.clear()
            _come_back(client, cut)
            if sent.is_set():  # the flush may not have arrived; one too many does no harm
                with suppress(ConnectionClosed):
                    client.flush()
        else:
            raise LiveError("connection_lost", "the server ended the session before all was heard")


def _come_back(client: LiveClient, cut: ConnectionClosed) -> None:
    """To the same session, as long as it may be there. Raises what is in the way then."""
    if cut.rcvd is not None and cut.rcvd.code in _FINAL_CLOSES:
        raise cut
    print("The connection broke; trying to come back.", file=sys.stderr)
    give_up_s = time.monotonic() + _BACK_WITHIN_S
    while True:
        try:
            client.resume()
            return
        except (OSError, LiveError, WebSocketException) as error:
            final = isinstance(error, LiveError) and error.code in _FINAL_CODES
            if final or time.monotonic() > give_up_s:
                raise
        time.sleep(_TRY_EVERY_S)


class _Sender(threading.Thread):
    """Sends until the source ends, fails (`error`) or is left; the server's answer to the flush ends the command."""

    def __init__(self, client: LiveClient, chunks: Iterator[bytes]) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._chunks = chunks
        self.leaving, self.sent = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._send()
        except Exception as error:  # of the sound library: a microphone that was unplugged
            self.error = error
        self.sent.set()
        with suppress(ConnectionClosed):  # the reader sees the same
            self._client.flush()

    def _send(self) -> None:
        for chunk in self._chunks:
            if self.leaving.is_set():
                return
            try:
                self._client.send(chunk)
            except ConnectionClosed:
                # The client keeps it for when it is back, but only so much: no more comes meanwhile than is spoken.
                time.sleep(pcm.CHUNK_MS / 1000)


def _file(path: Path, speed: float) -> Iterator[bytes]:
    try:
        return pcm.paced(asyncio.run(pcm.decoded(path)), speed)
    except Failure as failure:
        raise _NoSource(f"{shown(str(path))}: {failure.message}") from None


def _microphone() -> Iterator[bytes]:
    try:
        import sounddevice
    except (ImportError, OSError):  # OSError: the package is there, the PortAudio library is not
        raise _NoSource(
            "the microphone needs the package 'sounddevice' (pip install sounddevice) and PortAudio; "
            "or stream a recording: asr-server live --file recording.wav"
        ) from None
    return _recorded(sounddevice)


def _recorded(sounddevice: Any) -> Iterator[bytes]:
    print("Listening; Ctrl-C ends.", file=sys.stderr)
    with sounddevice.RawInputStream(samplerate=SAMPLE_RATE, channels=1, dtype="int16") as stream:
        while True:
            data, _ = stream.read(pcm.CHUNK_BYTES // 2)
            yield bytes(data)
