"""The Wyoming protocol's speech-to-text side over TCP: a thread for each client. Transcribes nothing itself.

https://github.com/OHF-Voice/wyoming has the protocol. A client asks `describe`, or sends `transcribe`, `audio-start`,
`audio-chunk`s and `audio-stop`, and gets `transcript-start`, `transcript-chunk`s while it speaks, then `transcript`
and `transcript-stop`. An error is an `error` event; the connection ends once the client has sent its audio.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import threading
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO, cast

from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, read_event, write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info
from wyoming.ping import Ping, Pong

from asr_server import __version__
from asr_server.bridge.pcm import PcmFormat, UnknownFormat
from asr_server.bridge.utterance_session import UtteranceError, UtteranceOptions, UtteranceSession
from asr_server.text import languages

_ATTRIBUTION = Attribution(name="asr-server", url="https://github.com/QwenLM/Qwen3-ASR")
_NAME = "asr-server"
# Both far above what clients send: a header is one line of JSON, a chunk a fraction of a second.
_MAX_LINE_BYTES = 65_536
_MAX_READ_BYTES = 16 * 1024 * 1024
# What the server takes of names and terms, with the commas between them.
_MAX_WORDS_CHARS = 16_000


@dataclass(frozen=True, slots=True)
class Target:
    """The server behind the bridge, and the language for clients that name none ("": found out)."""

    server: str
    token: str = ""
    language: str = ""


def info() -> Info:
    """What `describe` is answered with; true of every server, and needs none."""
    model = AsrModel(
        name=_NAME,
        attribution=_ATTRIBUTION,
        installed=True,
        description="The model that the server runs",
        version=__version__,
        # Home Assistant offers exactly these; its name for Cantonese is a locale of Chinese.
        languages=[*(languages.code(name) for name in languages.model_languages()), "zh-HK"],
    )
    program = AsrProgram(
        name=_NAME,
        attribution=_ATTRIBUTION,
        installed=True,
        description="Self-hosted speech to text",
        version=__version__,
        models=[model],
        supports_transcript_streaming=True,
    )
    return Info(asr=[program])


class Bridge(socketserver.ThreadingTCPServer):
    """Listens when made; `serve_forever` answers, `shutdown` from another thread ends that. Raises `OSError`."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, target: Target) -> None:
        self.target = target
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Caller)

    @property
    def port(self) -> int:
        """The one it listens on; never 0."""
        return int(self.server_address[1])


class _Caller(socketserver.StreamRequestHandler):
    """One connection: any number of utterances, one after another."""

    disable_nagle_algorithm = True
    wbufsize = -1
    server: Bridge

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().setup()
        self._writing = threading.Lock()
        self._hearing: UtteranceSession | None = None
        self._failed = False
        self._told = False
        self._wish = UtteranceOptions(self.server.target.language)

    def handle(self) -> None:
        # A caller that leaves, or speaks another protocol, ends its own connection and nothing else.
        with contextlib.suppress(OSError):
            events = _Bounded(self.rfile)
            while (event := _next(events)) is not None:
                if not self._took(event):
                    return

    def finish(self) -> None:
        self._drop()
        with contextlib.suppress(OSError):
            super().finish()

    def _took(self, event: Event) -> bool:
        """Act on it; False when the connection is over."""
        try:
            return self._act(event)
        except UtteranceError as error:
            return self._refuse(error.code, str(error), event)
        except UnknownFormat as error:
            return self._refuse("invalid_audio", str(error), event)
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
            return self._refuse("invalid_event", f"The fields of this event are not Wyoming's: {event.type}.", event)

    def _act(self, event: Event) -> bool:
        if self._failed:
            # Closing while the client still sends would take the error event from it.
            return not AudioStop.is_type(event.type)
        if Describe.is_type(event.type):
            self._write(info())
        elif Ping.is_type(event.type):
            self._write(Pong(text=Ping.from_event(event).text))
        elif Transcribe.is_type(event.type):
            self._wish = _wish(Transcribe.from_event(event), self.server.target)
        elif AudioStart.is_type(event.type):
            start = AudioStart.from_event(event)
            PcmFormat(start.rate, start.width, start.channels)
            self._begin()
        elif AudioChunk.is_type(event.type):
            self._hear(AudioChunk.from_event(event))
        elif AudioStop.is_type(event.type):
            self._end()
        return True

    def _begin(self) -> UtteranceSession:
        self._drop()
        target, self._told = self.server.target, False
        self._hearing = UtteranceSession(target.server, target.token, self._wish, self._tell)
        return self._hearing

    def _drop(self) -> None:
        if self._hearing is not None:
            self._hearing.close()
            self._hearing = None

    def _hear(self, chunk: AudioChunk) -> None:
        hearing = self._hearing or self._begin()
        hearing.push(chunk.audio, PcmFormat(chunk.rate, chunk.width, chunk.channels))

    def _end(self) -> None:
        hearing = self._hearing or self._begin()
        heard = hearing.finish()
        self._hearing, self._wish = None, UtteranceOptions(self.server.target.language)
        if not self._told:
            self._write(TranscriptStart(language=heard.language or None))
        self._write(Transcript(text=heard.text, language=heard.language or None))
        self._write(TranscriptStop())

    def _tell(self, certain: str) -> None:
        if not self._told:
            self._told = True
            self._write(TranscriptStart())
        self._write(TranscriptChunk(text=certain))

    def _refuse(self, code: str, message: str, event: Event) -> bool:
        self._write(Error(text=message, code=code))
        self._drop()
        self._failed = True
        return not AudioStop.is_type(event.type)

    def _write(self, what: Eventable) -> None:
        with self._writing:
            write_event(what.event(), cast(BinaryIO, self.wfile))


class _Bounded:
    """No event makes the bridge reserve more memory than audio needs: `ValueError`, which ends the connection."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        return self._stream.readline(_MAX_LINE_BYTES)

    def read(self, size: int) -> bytes:
        if size > _MAX_READ_BYTES:
            raise ValueError("more than an event may hold")
        return self._stream.read(size)


def _next(stream: _Bounded) -> Event | None:
    """The next event; None when the connection ended, or what came is none."""
    try:
        return read_event(cast(BinaryIO, stream))
    except (KeyError, TypeError, AttributeError, RecursionError):
        return None


def _wish(asked: Transcribe, target: Target) -> UtteranceOptions:
    words = [str(word) for word in (*(asked.transcript_names or ()), *(asked.transcript_terms or ()))]
    # The first ones: a house with too many names must not lose its commands over the last.
    ends = accumulate(len(word) + len(", ") for word in words)
    kept = tuple(word for word, end in zip(words, ends, strict=True) if end <= _MAX_WORDS_CHARS)
    return UtteranceOptions(asked.language or target.language, kept)
