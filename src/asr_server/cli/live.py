"""`asr-server live`: streams a file or a microphone to a server and shows the words as they become certain."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from asr_server.cli import arguments, pcm
from asr_server.cli.failure import Exit, Failure, complain, no_server, shown
from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions

EXAMPLES = (
    "asr-server live --file talk.mp3",
    "asr-server live --mic --language en             Ctrl-C ends it, after the last words",
    "asr-server live --mic --server https://asr.example.org --api-key-file key.txt",
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments; 3 no server; 130 a file was left with Ctrl-C"
_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"


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
    parser.add_argument("--speed", type=float, default=1.0, help="times real time for a file; 0 is as fast as it goes")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    return live(LiveCommand(parsed.server, parsed.file, parsed.language, parsed.speed, arguments.key(parsed)))


def live(command: LiveCommand) -> int:
    """Returns an `Exit`; Ctrl-C is how a microphone is ended. Raises `NoServer`."""
    try:
        chunks = _file(command.file, command.speed) if command.file else _microphone()
        with _connected(command) as client:
            ended = _stream(client, chunks, Screen(sys.stdout))
    except (OSError, LiveError, ConnectionClosed, _NoSource) as error:
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
    leaving = threading.Event()
    threading.Thread(target=_send, args=(client, chunks, leaving), daemon=True).start()
    try:
        _show(client, screen)
    except KeyboardInterrupt:
        leaving.set()
        _show(client, screen)
        return False
    return True


def _show(client: LiveClient, screen: Screen) -> None:
    for line in client.lines():
        screen.show(line)
        if line.ending == "flush":
            return
    raise LiveError("connection_lost", "the server ended the session before all was heard")


def _send(client: LiveClient, chunks: Iterator[bytes], leaving: threading.Event) -> None:
    """Until the source ends or is left; the server's answer to the flush ends the command."""
    with suppress(ConnectionClosed):  # the reader sees the same, with the reason
        for chunk in chunks:
            if leaving.is_set():
                break
            client.send(chunk)
        client.flush()


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
    with sounddevice.RawInputStream(samplerate=pcm.RATE_HZ, channels=1, dtype="int16") as stream:
        while True:
            data, _ = stream.read(pcm.CHUNK_BYTES // 2)
            yield bytes(data)
