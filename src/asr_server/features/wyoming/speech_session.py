"""Speaks the texts of one Wyoming connection, one after another: requests to the server, events to the client.

The caller's thread reads the connection and queues texts; another thread speaks them. So the caller notices a client
that leaves while the server works, and cancels the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from loguru import logger
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, Eventable
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeTextFormat,
)

from asr_server.client.connection import FileError
from asr_server.client.speech import AsyncSpeechClient, SpeechFields
from asr_server.core.audio import SPEECH_RATE
from asr_server.features.wyoming.voice_names import speech_fields
from asr_server.text.sentences import SentenceStream

# Decides about abbreviations in a text whose language is not stated.
_USUAL_LANGUAGE = "en"


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """The server behind the bridge."""

    server: str
    token: str = ""  # the key, "" for none
    language: str = ""  # ISO code, for clients that state none; "" to detect it


# The pause between the sentences of a streamed text, the same as in a text that the server gets as a whole.
PAUSE_MS = 250
# The longest text that a server can be set to take at once.
_MAX_TEXT_CHARS = 200_000
# With this many parts in the queue, the client waits. A part is a sentence of a streamed text, or a whole text.
_MAX_WAITING_PARTS = 32
# A request may wait in the server's queue, and for its model to load.
_SILENT_SERVER_S = 600.0
_SAMPLE_BYTES = 2
_SHAPE = {"rate": SPEECH_RATE, "width": _SAMPLE_BYTES, "channels": 1}
_CHUNK_BYTES = SPEECH_RATE // 10 * _SAMPLE_BYTES
_PAUSE = bytes(SPEECH_RATE * PAUSE_MS // 1000 * _SAMPLE_BYTES)

Write = Callable[[Eventable], None]
_EVENTS = (Synthesize, SynthesizeStart, SynthesizeChunk, SynthesizeStop)


class SpeechAnswer:
    """The events that answer one text, whole or streamed. It ends in the same way after an error."""

    def __init__(self, fields: SpeechFields, *, streamed: bool) -> None:
        self.fields = fields
        self.sentences = SentenceStream(fields.get("language", _USUAL_LANGUAGE))
        self.ended = False
        self._streamed = streamed
        self._started = False
        self._held = b""  # written before the next samples: half a sample, or a pause

    def audio(self, data: bytes, write: Write) -> None:
        """Add the next bytes of the samples, cut anywhere."""
        if not self._started:
            self._start(write)
        data = self._held + data
        whole = len(data) - len(data) % _SAMPLE_BYTES
        self._held = data[whole:]
        for at in range(0, whole, _CHUNK_BYTES):
            write(AudioChunk(audio=data[at : min(at + _CHUNK_BYTES, whole)], **_SHAPE))

    def sentence_ended(self) -> None:
        """Note the end of a sentence: if another follows, there is a pause before it."""
        self._held = _PAUSE

    def end(self, write: Write, error: Error | None = None) -> None:
        """End the answer. `error`: why nothing follows."""
        self.ended = True
        if error is not None:
            write(error)
        elif not self._started:
            self._start(write)
        write(AudioStop())
        if self._streamed:
            write(SynthesizeStopped())

    def _start(self, write: Write) -> None:
        self._started = True
        write(AudioStart(**_SHAPE))


class SpeechRequests:
    """The speech requests of one connection, spoken in order over one kept connection to the server.

    A thread speaks them. It starts with the first request.
    """

    def __init__(self, target: ServerTarget, write: Write) -> None:
        """`write` is called on that thread. If it raises `OSError`, nothing more is spoken."""
        self._target, self._write = target, write
        # The parts of the answers, in order: a text to speak, an error, or neither at the end of an answer.
        self._parts: asyncio.Queue[tuple[SpeechAnswer, str | None, Error | None]] = asyncio.Queue(_MAX_WAITING_PARTS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streamed: SpeechAnswer | None = None  # the answer to a text that is still arriving

    def handle(self, event: Event) -> None:
        """Handle an event if it asks for speech. Blocks while too much waits to be spoken."""
        if not any(kind.is_type(event.type) for kind in _EVENTS):
            return
        is_whole = Synthesize.is_type(event.type)
        if is_whole and self._streamed is not None:
            return  # Home Assistant sends the whole of a streamed text too
        if SynthesizeStart.is_type(event.type) and self._streamed is not None:
            self._end(self._streamed)
        answer = self._streamed or SpeechAnswer(speech_fields(None, self._target.language), streamed=not is_whole)
        self._streamed = None if is_whole else answer
        try:
            self._take(answer, event)
        except ValueError:
            self._fail(answer, "unsupported_text_format", "The text must be plain text.")
        except (KeyError, TypeError, AttributeError):
            self._fail(answer, "invalid_event", f"The fields of this event are not Wyoming's: {event.type[:40]}.")
        if is_whole or SynthesizeStop.is_type(event.type):
            self._end(answer)

    def close(self) -> None:
        """Cancel all work, on the server too."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join()

    def _take(self, answer: SpeechAnswer, event: Event) -> None:
        """Queue the text of an event. Raises ValueError for a text that is not plain, and the errors of Wyoming's
        classes."""
        if SynthesizeChunk.is_type(event.type):
            for sentence in answer.sentences.push(_text(SynthesizeChunk.from_event(event).text)):
                self._say(answer, sentence)
        elif not SynthesizeStop.is_type(event.type):
            wanted = (SynthesizeStart if SynthesizeStart.is_type(event.type) else Synthesize).from_event(event)
            if wanted.text_format not in (None, SynthesizeTextFormat.TEXT):
                raise ValueError("text_format")
            answer.fields = speech_fields(wanted.voice, self._target.language)
            answer.sentences = SentenceStream(answer.fields.get("language", _USUAL_LANGUAGE))
            if isinstance(wanted, Synthesize):
                self._say(answer, _text(wanted.text))

    def _say(self, answer: SpeechAnswer, text: str) -> None:
        if len(text) > _MAX_TEXT_CHARS:
            self._fail(answer, "string_above_max_length", f"The text has more than {_MAX_TEXT_CHARS} characters.")
        else:
            self._put(answer, text)

    def _fail(self, answer: SpeechAnswer, code: str, message: str) -> None:
        self._put(answer, error=Error(text=message, code=code))

    def _end(self, answer: SpeechAnswer) -> None:
        self._streamed = None
        for sentence in answer.sentences.flush():
            self._say(answer, sentence)
        self._put(answer)

    def _put(self, answer: SpeechAnswer, text: str | None = None, error: Error | None = None) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._task = self._loop.create_task(self._speak_all())
            self._thread = threading.Thread(target=self._run, args=[self._loop], daemon=True)
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._parts.put((answer, text, error)), self._loop).result()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.closing(loop):
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(self._task)
            loop.run_until_complete(loop.shutdown_asyncgens())

    async def _speak_all(self) -> None:
        async with AsyncSpeechClient(self._target.server, key=self._target.token, timeout_s=_SILENT_SERVER_S) as client:
            with contextlib.suppress(OSError):
                while True:
                    await self._speak(client, *await self._parts.get())
            # The client has gone. Until the thread that reads its connection notices that, the queue must not block it.
            while True:
                await self._parts.get()

    async def _speak(
        self, client: AsyncSpeechClient, answer: SpeechAnswer, text: str | None, error: Error | None
    ) -> None:
        if answer.ended:
            return
        if text is None:
            answer.end(self._write, error)
            return
        fields: SpeechFields = {**answer.fields, "format": "pcm", "pause_ms": PAUSE_MS}
        try:
            async with aclosing(client.stream(text, **fields)) as pieces:
                async for data in pieces:
                    answer.audio(data, self._write)
            answer.sentence_ended()
        except FileError as failure:
            logger.warning("speech failed", code=failure.code, reason=failure.message)
            answer.end(self._write, Error(text=failure.message, code=failure.code))


def _text(value: object) -> str:
    """Return the text. Raises TypeError for a value of another type."""
    if not isinstance(value, str):
        raise TypeError("text")
    return value
