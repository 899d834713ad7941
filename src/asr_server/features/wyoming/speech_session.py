"""The texts of one Wyoming connection as speech, one after another: requests to the server, and events of the answers.

The caller's thread reads the connection and puts texts in; a thread of this class speaks them. So a client that leaves
is noticed while the server works, which ends the request.
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
class SpeechTarget:
    """The server that speaks."""

    server: str
    token: str  # the key, "" for none
    language: str  # for clients that state none; "" for that of the text's script


class SpeechRequests:
    """The speech requests of one connection. Its thread and its connection to the server begin with the first."""

    def __init__(self, target: SpeechTarget, write: Write) -> None:
        """`write` is called on another thread."""
        self._target, self._write = target, write
        self._session: BridgeSpeech | None = None
        self._streamed: _StreamedText | None = None

    def handle(self, event: Event) -> bool:
        """Returns False for an event that does not ask for speech. Blocks while too much waits to be spoken."""
        if Synthesize.is_type(event.type):
            if self._streamed is None:
                self._synthesize(event)
        elif SynthesizeStart.is_type(event.type):
            self._stop()
            self._start(event)
        elif SynthesizeChunk.is_type(event.type):
            self._push(event)
        elif SynthesizeStop.is_type(event.type):
            if self._streamed is None:
                self._start(SynthesizeStart().event())
            self._stop()
        else:
            return False
        return True

    def close(self) -> None:
        """Cancel all work."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def _open_session(self) -> BridgeSpeech:
        if self._session is None:
            self._session = BridgeSpeech(self._target.server, self._target.token, self._write)
        return self._session

    def _synthesize(self, event: Event) -> None:
        answer = SpeechAnswer(SpeechFields(), streamed=False)
        try:
            wanted = Synthesize.from_event(event)
            answer.fields = self._fields(wanted)
            text = _text(wanted.text)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._refuse(answer, event, error)
        else:
            self._open_session.say(answer, text)
            self._open_session.end(answer)

    def _start(self, event: Event) -> None:
        answer = SpeechAnswer(SpeechFields(), streamed=True)
        self._streamed = _StreamedText(answer, SentenceStream(_USUAL_LANGUAGE))
        try:
            answer.fields = self._fields(SynthesizeStart.from_event(event))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._refuse(answer, event, error)
        else:
            sentences = SentenceStream(answer.fields.get("language", _USUAL_LANGUAGE))
            self._streamed = _StreamedText(answer, sentences)

    def _push(self, event: Event) -> None:
        if self._streamed is None:
            self._start(SynthesizeStart().event())
        assert self._streamed is not None
        answer = self._streamed.answer
        try:
            text = _text(SynthesizeChunk.from_event(event).text)
        except (KeyError, TypeError) as error:
            self._refuse(answer, event, error)
            return
        if not answer.ended:
            for sentence in self._streamed.sentences.push(text):
                self._open_session.say(answer, sentence)

    def _stop(self) -> None:
        streamed, self._streamed = self._streamed, None
        if streamed is not None:
            for sentence in streamed.sentences.flush():
                self._open_session.say(streamed.answer, sentence)
            self._open_session.end(streamed.answer)

    def _fields(self, wanted: Synthesize | SynthesizeStart) -> SpeechFields:
        if wanted.text_format not in (None, SynthesizeTextFormat.TEXT):
            raise ValueError("text_format")
        return speech_fields(wanted.voice, self._target.language)

    def _refuse(self, answer: SpeechAnswer, event: Event, error: Exception) -> None:
        if isinstance(error, ValueError):
            self._open_session.fail(answer, "unsupported_text_format", "The text must be plain text.")
        else:
            message = f"The fields of this event are not Wyoming's: {event.type[:40]}."
            self._open_session.fail(answer, "invalid_event", message)


@dataclass(frozen=True, slots=True)
class _StreamedText:
    """A text that arrives, and its answer."""

    answer: SpeechAnswer
    sentences: SentenceStream


def _text(value: object) -> str:
    """Raises TypeError for what is no text."""
    if not isinstance(value, str):
        raise TypeError("text")
    return value


# Between the sentences of a streamed text, as the server makes it between those of a whole text.
PAUSE_MS = 250
# The longest text that a server can be set to take at once.
_MAX_TEXT_CHARS = 200_000
# Then the client waits. A part is a sentence of a streamed text, or a whole text.
_MAX_WAITING_PARTS = 32
# A request may wait in the server's queue, and for its model to load.
_SILENT_SERVER_S = 600.0
_SAMPLE_BYTES = 2
_SHAPE = {"rate": SPEECH_RATE, "width": _SAMPLE_BYTES, "channels": 1}
_CHUNK_BYTES = SPEECH_RATE // 10 * _SAMPLE_BYTES
_PAUSE = bytes(SPEECH_RATE * PAUSE_MS // 1000 * _SAMPLE_BYTES)

Write = Callable[[Eventable], None]


class SpeechAnswer:
    """The events that answer one text, whole or streamed. It ends in the same way after an error."""

    def __init__(self, fields: SpeechFields, *, streamed: bool) -> None:
        self.fields = fields
        self.ended = False
        self._streamed = streamed
        self._started = False
        self._partial = b""
        self._before_next = b""

    def audio(self, data: bytes, write: Write) -> None:
        """Add the next bytes of the samples, cut anywhere."""
        if not self._started:
            self._start(write)
        data = self._before_next + self._partial + data
        whole = len(data) - len(data) % _SAMPLE_BYTES
        self._before_next, self._partial = b"", data[whole:]
        for at in range(0, whole, _CHUNK_BYTES):
            write(AudioChunk(audio=data[at : min(at + _CHUNK_BYTES, whole)], **_SHAPE))

    def sentence_ended(self) -> None:
        """Note the end of a sentence: if another follows, there is a pause before it."""
        self._before_next, self._partial = _PAUSE, b""

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


@dataclass(frozen=True, slots=True)
class _Part:
    """The next thing for an answer: a text to speak, an error, or its end."""

    answer: SpeechAnswer
    text: str | None = None  # the text to speak, None for an end
    error: Error | None = None  # why the answer ends, None where all is well


class BridgeSpeech:
    """Speaks texts in the order in which they are put in, over one kept connection to the server."""

    def __init__(self, server: str, token: str, write: Write) -> None:
        """`write` is called on the thread of this class. If it raises `OSError`, nothing more is spoken."""
        self._server, self._token, self._write = server, token, write
        self._parts: asyncio.Queue[_Part] = asyncio.Queue(_MAX_WAITING_PARTS)
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._speak_all())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def say(self, answer: SpeechAnswer, text: str) -> None:
        """Speak a text as the next part of an answer. Blocks while too many wait."""
        if len(text) > _MAX_TEXT_CHARS:
            self.fail(answer, "string_above_max_length", f"The text has more than {_MAX_TEXT_CHARS} characters.")
        else:
            self._put(_Part(answer, text))

    def end(self, answer: SpeechAnswer) -> None:
        """End an answer: nothing follows."""
        self._put(_Part(answer))

    def fail(self, answer: SpeechAnswer, code: str, message: str) -> None:
        """End an answer with an error."""
        self._put(_Part(answer, error=Error(text=message, code=code)))

    def close(self) -> None:
        """Cancel all work, on the server too."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _put(self, part: _Part) -> None:
        asyncio.run_coroutine_threadsafe(self._parts.put(part), self._loop).result()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _speak_all(self) -> None:
        async with AsyncSpeechClient(self._server, key=self._token, timeout_s=_SILENT_SERVER_S) as client:
            with contextlib.suppress(OSError):
                while True:
                    await self._speak(client, await self._parts.get())
            # The client has gone. Whoever reads its connection notices, and must not wait here until then.
            while True:
                await self._parts.get()

    async def _speak(self, client: AsyncSpeechClient, part: _Part) -> None:
        answer = part.answer
        if answer.ended:
            return
        if part.text is None:
            answer.end(self._write, part.error)
            return
        fields: SpeechFields = {**answer.fields, "format": "pcm", "pause_ms": PAUSE_MS}
        try:
            async with aclosing(client.stream(part.text, **fields)) as pieces:
                async for data in pieces:
                    answer.audio(data, self._write)
            answer.sentence_ended()
        except FileError as error:
            logger.warning("speech failed", code=error.code, reason=error.message)
            answer.end(self._write, Error(text=error.message, code=error.code))
