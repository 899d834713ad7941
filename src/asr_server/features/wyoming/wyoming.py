"""The server side of Wyoming's speech-to-text and text-to-speech over TCP. Each client has a thread.

https://github.com/OHF-Voice/wyoming has the protocol. A client asks `describe`, or sends `transcribe`, `audio-start`,
`audio-chunk`s and `audio-stop`, and gets `transcript-start`, `transcript-chunk`s while it speaks, then `transcript` and
`transcript-stop`. An error is an `error` event; the connection ends once the client has sent its audio.

Or it sends `synthesize`, or `synthesize-start`, `synthesize-chunk`s and `synthesize-stop`: `speech_session.py`.
"""

from __future__ import annotations

import contextlib
import io
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

import httpx
from loguru import logger
from wyoming.asr import Transcribe, Transcript, TranscriptChunk, TranscriptStart, TranscriptStop
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable, read_event, write_event
from wyoming.info import AsrModel, AsrProgram, Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong

from asr_server import __version__
from asr_server.client.connection import FileError, client_options
from asr_server.client.live import LiveError, LiveOptions
from asr_server.client.speech import VOICES_ROUTE, SpeakingVoice, voices_of
from asr_server.features.wyoming.home_names import fitting
from asr_server.features.wyoming.pcm import PcmFormat, UnknownFormat
from asr_server.features.wyoming.speech_session import ServerTarget, SpeechRequests
from asr_server.features.wyoming.utterance_session import UtteranceSession
from asr_server.features.wyoming.voice_names import distinct, language_tags, voice_name
from asr_server.text import languages

_TIMEOUT_S = 2.0
# A client may send `describe` on every connection, and each answer takes requests to the server.
_KEPT_S = 10.0
_ALL_LANGUAGES = tuple(languages.code(name) for name in languages.model_languages())


@dataclass(frozen=True, slots=True)
class ServerState:
    """The server as the bridge found it."""

    problem: str  # why the server cannot be used, "" if it can
    # codes; all languages of Qwen3-ASR while those of the server's model are unknown
    languages: tuple[str, ...] = _ALL_LANGUAGES
    voices: tuple[SpeakingVoice, ...] = ()  # none for a server that does not speak


class ServerMonitor:
    """Asks the server for its state on demand. Threads may share it."""

    def __init__(self, server: str, token: str) -> None:
        self._server, self._token = server, token
        self._lock = threading.Lock()
        self._state: ServerState | None = None
        self._asked_s = 0.0

    def state(self) -> ServerState:
        """Return the state of at most 10 s ago. Takes up to 4 s."""
        with self._lock:
            if self._state is None or time.monotonic() - self._asked_s > _KEPT_S:
                self._state = look(self._server, self._token)
                self._asked_s = time.monotonic()
            return self._state


def look(server: str, token: str) -> ServerState:
    """Ask the server now."""
    try:
        with httpx.Client(**client_options(server, token, _TIMEOUT_S)) as client:
            answer = client.get("/health")
            body = answer.json()
            if answer.status_code == 200:
                problem = "The server is shutting down." if body["status"] == "draining" else ""
                if not problem and body["model_state"] == "failed":
                    problem = f"The model of the server cannot be loaded: {body['model_error']}"
                return ServerState(problem, tuple(map(str, body["languages"])), _voices(client))
        message = str(body["error"]["message"])
    except httpx.HTTPError:
        return ServerState(f"No server answers at {server}.")
    except (ValueError, KeyError, TypeError):
        return ServerState(f"What answers at {server} is no asr-server.")
    if answer.status_code == 401:
        message += " The bridge takes it from --api-key-file or ASR_API_KEY."
    return ServerState(f"The server at {server} refuses the bridge: {message}")


def _voices(client: httpx.Client) -> tuple[SpeakingVoice, ...]:
    try:
        return tuple(voices_of(client.get(VOICES_ROUTE)))
    except (FileError, httpx.HTTPError, ValueError, KeyError, TypeError):
        return ()


# Each connection has a thread. A home's clients open one for each utterance.
_MAX_CONNECTIONS = 128
# Both far above what clients send: a header is one line of JSON, a chunk a fraction of a second.
_MAX_LINE_BYTES = 65_536
_MAX_READ_BYTES = 16 * 1024 * 1024
# Far above the pauses of a client that reads.
_SEND_TIMEOUT_S = 60
# The server's limit for names and terms, with the commas between them. In a home with many names, the server's error
# would make every command fail.
_MAX_WORDS_CHARS = 16_000
_ATTRIBUTION = Attribution(name="asr-server", url="https://github.com/QwenLM/Qwen3-ASR")
# The fields of every part of the answer to `describe`.
_PART: dict[str, Any] = {"name": "asr-server", "attribution": _ATTRIBUTION, "version": __version__}


@dataclass(frozen=True, slots=True)
class BridgeTarget(ServerTarget):
    """The server, and the words that it should expect."""

    names: Callable[[], tuple[str, ...]] = tuple  # words to expect in addition to the words of clients

    def options(self, wanted: Transcribe) -> LiveOptions:
        """Return the options of a session for one utterance, with as many words as the server takes."""
        words = map(str, (*(wanted.transcript_names or ()), *(wanted.transcript_terms or ()), *self.names()))
        # The client says where an utterance ends: a pause inside a command must not divide it, or its words lose their
        # context.
        return LiveOptions(
            language=wanted.language or self.language,
            use_server_vad=False,
            hotwords=fitting(words, _MAX_WORDS_CHARS),
            token=self.token,
        )


class Bridge(socketserver.ThreadingTCPServer):
    """Listens once constructed; the constructor raises `OSError`. Another thread ends `serve_forever` by `shutdown`."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, target: BridgeTarget) -> None:
        self.target = target
        self.monitor = ServerMonitor(target.server, target.token)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.slots = threading.Semaphore(_MAX_CONNECTIONS)
        super().__init__((host, port), _Connection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Connection(socketserver.StreamRequestHandler):
    """A connection with any number of utterances, one after another."""

    disable_nagle_algorithm = True
    wbufsize = -1
    server: Bridge

    def setup(self) -> None:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
        super().setup()
        self._writing = threading.Lock()
        self._speech = SpeechRequests(self.server.target, self._write)
        self._session: UtteranceSession | None = None
        self._failed = False
        self._started = False
        self._options: LiveOptions | None = None  # of the next utterance, if the client states them

    def handle(self) -> None:
        if not self.server.slots.acquire(blocking=False):
            return
        try:
            events = _BoundedStream(self.rfile)
            while (event := _next(events)) is not None:
                if not self._handle(event):
                    return
        except OSError:
            return  # a client that disconnects, or uses another protocol, ends its own connection and nothing else
        finally:
            self.server.slots.release()

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            # Ends a write that waits for a client that does not read.
            self.request.shutdown(socket.SHUT_RDWR)
        self._speech.close()
        self._drop()
        with contextlib.suppress(OSError):
            super().finish()
        # With unwritten data the line above fails before it closes this file, and the socket would stay open.
        self.rfile.close()

    def _handle(self, event: Event) -> bool:
        """Handle an event. Returns False when the connection is to be closed."""
        try:
            return self._dispatch(event)
        except LiveError as error:
            return self._fail(error.code, str(error), event)
        except UnknownFormat as error:
            return self._fail("invalid_audio", str(error), event)
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
            return self._fail("invalid_event", f"The fields of this event are not Wyoming's: {event.type[:40]}.", event)

    def _dispatch(self, event: Event) -> bool:
        if self._failed:
            # Closing while the client still sends would discard the error event.
            return not AudioStop.is_type(event.type)
        if Describe.is_type(event.type):
            self._write(info(self.server.monitor.state()))
        elif Ping.is_type(event.type):
            self._write(Pong(text=Ping.from_event(event).text))
        elif Transcribe.is_type(event.type):
            self._options = self.server.target.options(Transcribe.from_event(event))
        elif AudioStart.is_type(event.type):
            start = AudioStart.from_event(event)
            PcmFormat(start.rate, start.width, start.channels)
            self._begin()
        elif AudioChunk.is_type(event.type):
            chunk = AudioChunk.from_event(event)
            session = self._session or self._begin()
            session.push(chunk.audio, PcmFormat(chunk.rate, chunk.width, chunk.channels))
        elif AudioStop.is_type(event.type):
            self._end()
        else:
            self._speech.handle(event)
        return True

    def _begin(self) -> UtteranceSession:
        self._drop()
        self._started = False
        target = self.server.target
        options = self._options or target.options(Transcribe())
        self._session = UtteranceSession(target.server, options, self._send_words)
        return self._session

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _end(self) -> None:
        session = self._session or self._begin()
        result = session.finish()
        self._session, self._options = None, None
        if not self._started:
            self._write(TranscriptStart(language=result.language or None))
        self._write(Transcript(text=result.text, language=result.language or None))
        self._write(TranscriptStop())

    def _send_words(self, certain: str) -> None:
        if not self._started:
            self._started = True
            self._write(TranscriptStart())
        self._write(TranscriptChunk(text=certain))

    def _fail(self, code: str, message: str, event: Event) -> bool:
        logger.warning("utterance failed", code=code, reason=message, client=self.client_address[0])
        self._write(Error(text=message, code=code))
        self._drop()
        self._failed = True
        return not AudioStop.is_type(event.type)

    def _write(self, what: Eventable | Event) -> None:
        """Write an event. Raises `OSError` if the client has gone or does not read, and then ends its connection."""
        try:
            with self._writing:
                write_event(what if isinstance(what, Event) else what.event(), cast(BinaryIO, self.wfile))
        except OSError:
            with contextlib.suppress(OSError):
                self.request.shutdown(socket.SHUT_RDWR)
            raise


class _BoundedStream:
    """Limits the memory for one event. Raises `ValueError`, which ends the connection."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        return self._stream.readline(_MAX_LINE_BYTES)

    def read(self, size: int) -> bytes:
        if size > _MAX_READ_BYTES:
            raise ValueError("more than an event may hold")
        return self._stream.read(size)


def _next(stream: _BoundedStream) -> Event | None:
    """Return the next event; None at the end of the connection, and for data that is not an event."""
    try:
        return read_event(cast(BinaryIO, stream))
    except (KeyError, TypeError, AttributeError, RecursionError):
        return None


# Every voice in every language makes the answer large, and Home Assistant waits only one second for it.
@lru_cache(maxsize=1)
def info(state: ServerState) -> Event:
    """Return the answer to `describe`: what the server can do, as Home Assistant reads it.

    Home Assistant does not use a program that is not installed. Text to speech is listed only if the server speaks.
    """
    return Info(asr=[_hearing(state)], tts=[_speaking(state)] if state.voices else []).event()


def _hearing(state: ServerState) -> AsrProgram:
    ready = not state.problem
    model = AsrModel(
        **_PART,
        installed=ready,
        description=state.problem or "The model that the server runs",
        # Home Assistant offers exactly these; its name for Cantonese is a locale of Chinese.
        languages=[*state.languages, *(["zh-HK"] if "yue" in state.languages else [])],
    )
    return AsrProgram(
        **_PART,
        installed=ready,
        description=state.problem or "Self-hosted speech to text",
        models=[model],
        supports_transcript_streaming=True,
    )


def _speaking(state: ServerState) -> TtsProgram:
    return TtsProgram(
        **_PART,
        installed=True,
        description="Self-hosted text to speech",
        voices=[_voice(voice, tag) for voice in distinct(state.voices) for tag in language_tags(voice.languages)],
        supports_synthesize_streaming=True,
    )


def _voice(voice: SpeakingVoice, tag: str) -> TtsVoice:
    # Home Assistant shows the description instead of the name.
    shown = {"name": voice_name(voice.id, tag), "description": f"{voice.id}: {voice.description}"}
    return TtsVoice(**(_PART | shown), installed=True, languages=[tag])
