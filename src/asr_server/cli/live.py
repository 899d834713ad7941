"""`asr-server live`: streams a file or a microphone to a server and shows the words as they become certain."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions

_CHUNK_MS = 100
_RATE_HZ = 16_000
_CHUNK_BYTES = 2 * _RATE_HZ * _CHUNK_MS // 1000
_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"


@dataclass(frozen=True, slots=True)
class LiveCommand:
    """What the command line said. `file`: None for the microphone. `speed`: times real time, 0 as fast as it goes."""

    server: str
    file: Path | None
    language: str = ""
    speed: float = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--file", type=Path, help="a recording in any container")
    source.add_argument("--mic", action="store_true", help="the microphone (needs the package sounddevice)")
    parser.add_argument("--server", default="http://127.0.0.1:8100", help="address (default http://127.0.0.1:8100)")
    parser.add_argument("--language", default="", help="language code or name; found out if left out")
    parser.add_argument("--speed", type=float, default=1.0, help="times real time for a file; 0 is as fast as it goes")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    return live(LiveCommand(parsed.server, parsed.file, parsed.language, parsed.speed))


def live(command: LiveCommand) -> int:
    """Returns 0 when all was transcribed, 1 when the source or the server failed."""
    try:
        chunks = _file(command.file, command.speed) if command.file else _microphone()
        with LiveClient(command.server, LiveOptions(language=command.language)) as client:
            _stream(client, chunks, Screen(sys.stdout))
    except (OSError, LiveError, ConnectionClosed, _NoSource) as error:
        print(f"asr-server live: {error}", file=sys.stderr)
        return 1
    return 0


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


def _stream(client: LiveClient, chunks: Iterator[bytes], screen: Screen) -> None:
    sender = threading.Thread(target=_send, args=(client, chunks), daemon=True)
    sender.start()
    for line in client.lines():
        screen.show(line)
        if line.ending == "flush":
            return


def _send(client: LiveClient, chunks: Iterator[bytes]) -> None:
    """Until the source ends or is interrupted; the server's answer to the flush ends the command."""
    try:
        for chunk in chunks:
            client.send(chunk)
        client.flush()
    except ConnectionClosed:
        return  # the reader sees the same, with the reason


def _file(path: Path, speed: float) -> Iterator[bytes]:
    pcm = asyncio.run(_decoded(path))
    return _paced(pcm, speed)


def _paced(pcm: bytes, speed: float) -> Iterator[bytes]:
    began_s = time.monotonic()
    for number, at in enumerate(range(0, len(pcm), _CHUNK_BYTES)):
        if speed:
            time.sleep(max(0.0, began_s + number * _CHUNK_MS / 1000 / speed - time.monotonic()))
        yield pcm[at : at + _CHUNK_BYTES]


async def _decoded(path: Path) -> bytes:
    """Any recording as 16-bit PCM at 16 kHz."""
    from asr_server.audio.decode import DecodeLimits, Decoder
    from asr_server.core.errors import InvalidInput

    decoder = Decoder(DecodeLimits(max_audio_s=24 * 3600.0))
    try:
        with path.open("rb") as file:
            audio = await decoder.decode(file)
    except InvalidInput as error:
        raise _NoSource(f"{path}: {error.message}") from None
    finally:
        await decoder.close()
    return bytes((audio * 32_768).clip(-32_768, 32_767).round().astype("<i2").tobytes())


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
    with sounddevice.RawInputStream(samplerate=_RATE_HZ, channels=1, dtype="int16") as stream:
        while True:
            data, _ = stream.read(_CHUNK_BYTES // 2)
            yield bytes(data)
