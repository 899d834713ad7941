"""Sessions that speak a text while it arrives: pieces of text in, audio out, and everything stops on a cancel.

Everything runs on the event loop. One task speaks. It waits until each message has been sent, so the engine is at most
two sentences ahead of the client. The next sentences are queued at the engine as they arrive.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

from loguru import logger

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import InvalidInput, ShuttingDown
from asr_server.features.speech_output.queue import QueuedSentence, QueueMark, SpeechQueue
from asr_server.features.speech_output.requests import SpeechOptions
from asr_server.features.speech_output.script import ArrivingText, Delivery
from asr_server.features.speech_output.synthesis import (
    AudioChunk,
    FileEvent,
    SentenceBegun,
    SentenceEnded,
    SpeechProcessor,
)
from asr_server.net.access import fingerprint
from asr_server.net.errors import Json
from asr_server.net.loop_time import TimeSlice, loop_time
from asr_server.text.sentences import TextSpan

# Characters of a text that are divided into sentences at a time, which takes at most 3 ms.
_SLICE_CHARACTERS = 256
# After a slice the session rests this many times as long, so that it takes a small part of the event loop.
_REST = 8
# The loop time that each cancelled text costs its caller, for work begun in vain: 16 texts in a row, then 8 a second.
CANCEL_S = 0.00625
_DRAIN_TIMEOUT_S = 20.0
IDLE_S = 300.0  # a session ends after this long without a message from the client and without speech

Send = Callable[[Json | bytes], Awaitable[None]]


class SpeechSession:
    """A session, made by `SpeechSessions`. Call `start` first. It does not use the engine before the first sentence.

    `send` sends a message to the client, audio as bytes. It is cancelled with the text that the message belongs to.
    """

    def __init__(self, processor: SpeechProcessor, send: Send, share: str = "") -> None:
        self.id = f"speech_{secrets.token_hex(4)}"
        self.closed = asyncio.Event()  # set by `SpeechSessions` once the connection has ended
        self.characters = self.cancels = 0
        # Counts of what was sent, over all texts of the session.
        self._sentences_begun = self.sentences_done = self.sent_samples = 0
        self._processor, self._share = processor, share
        self._delivery: Delivery | None = None
        self._send = send
        self.queue = SpeechQueue(
            processor.admission,
            partial(processor.admission.hold_live, share),
            lambda clock: clock.now_s() + processor.timeout_s,
        )
        self._file_begin_samples = 0  # samples of the session before the current file
        self._speaking: asyncio.Task[None] | None = None  # one task up to the next cancel
        self._send_error: Exception | None = None
        self._ended = self._draining = False
        self._slice = TimeSlice()
        self._active_s = time.monotonic()

    @property
    def started(self) -> bool:
        return self._delivery is not None

    # -- from the client ---------------------------------------------------------------------------------------------

    async def start(self, options: SpeechOptions) -> None:
        """Set how texts are spoken. Raises an error for a wrong option, and `invalid_event` the second time."""
        if self._delivery is not None:
            raise InvalidInput(
                "The session has started: 'start' is the first message or none.", code="invalid_event", param="type"
            )
        self._delivery = delivery = self._processor.delivery(options, "")
        self._text = ArrivingText(delivery.language, self._language_of)
        audio = {"sample_rate": SPEECH_RATE, "format": options.response_format.value, "ignored": list(delivery.ignored)}
        await self._notify({"type": "started", "id": self.id, **audio})

    async def push(self, piece: str) -> None:
        """Take the next piece of the text, a slice at a time: other sessions continue while a long piece is divided.

        Raises `string_above_max_length` or `Overloaded` if too much waits; then nothing of the piece is taken. Raises
        `UnsupportedLanguage` if no voice speaks the language of the text; then the text is discarded.
        """
        self._check_not_ended()
        if self._draining:
            return
        self._check_room(len(piece))
        with self.queue.expecting(self._delivered.seconds(piece), self._share, self._delivered):
            self.characters += len(piece)
            for begin in range(0, len(piece), _SLICE_CHARACTERS):
                await self._slice.next_round()
                began_s = time.monotonic()
                if not self._draining:
                    self._add(self._text.push(piece[begin : begin + _SLICE_CHARACTERS]))
                await asyncio.sleep(_REST * (time.monotonic() - began_s))

    def flush(self, *, ends: bool = False) -> None:
        """Speak everything that has arrived, and complete its file. `ends`: then `run` ends. Raises as `push`."""
        self._check_not_ended()
        if self._draining:
            return
        if not ends:
            self._check_room(1)
        self._ended = ends
        try:
            self._add(self._text.end())
        finally:  # even if the rest of the text cannot be spoken
            self.queue.put(QueueMark.END if ends else QueueMark.FLUSH)

    async def cancel(self) -> None:
        """Cancel the engine's jobs and forget everything that waits. Return when the client has been notified.

        While the server shuts down, end the session instead.
        """
        self.cancels += 1
        await self.stop()
        if self._draining:
            self.queue.put(QueueMark.STOP)
            return
        self._file_begin_samples = self.sent_samples
        await self._notify(
            {"type": "cancelled", "sentences_done": self.sentences_done, "sent_ms": _ms(self.sent_samples)}
        )
        if self._ended:
            self.queue.put(QueueMark.END)
        await loop_time().charged(self._share, CANCEL_S)

    def touch(self) -> None:
        self._active_s = time.monotonic()

    # -- to the client -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Speak all that arrives, until the text has ended.

        Raises `session_expired`, `ShuttingDown`, the error of `send`, and any error that ended the session.
        """
        while self._speaking is None or self._speaking.cancelled():
            self._speaking = asyncio.create_task(self._speak_all())
            while not self._speaking.done():
                await asyncio.wait([self._speaking], timeout=self._idle_left_s())
                if not (self._speaking.done() or self._idle_left_s()):
                    raise InvalidInput("The session was idle for too long.", code="session_expired")
            if self._send_error is not None:
                raise self._send_error
        self._speaking.result()

    async def _notify(self, message: Json | bytes) -> None:
        self.touch()
        await self._send(message)

    async def _emit(self, event: FileEvent) -> None:
        """Send the message of an event, then count it."""
        try:
            match event:
                case SentenceBegun(text=text, start_samples=start):
                    start_ms = _ms(self._file_begin_samples + start)
                    begun = {"index": self._sentences_begun, "text": text, "start_ms": start_ms}
                    await self._notify({"type": "sentence", **begun})
                    self._sentences_begun += 1
                case AudioChunk(data=data, end_samples=end_samples):
                    await self._notify(data)
                    self.sent_samples = self._file_begin_samples + end_samples
                case SentenceEnded(samples=samples):
                    done = {"index": self._sentences_begun - 1, "duration_ms": _ms(samples)}
                    await self._notify({"type": "sentence_done", **done})
                    self.sentences_done += 1
        except Exception as error:  # the client has left, so its text is cancelled and has not failed
            self._send_error = error
            raise asyncio.CancelledError from error

    def _idle_left_s(self) -> float:
        return max(0.0, self._active_s + IDLE_S - time.monotonic()) if self.queue.is_idle else IDLE_S

    # -- from the server ---------------------------------------------------------------------------------------------

    def finish_sentence(self) -> None:
        """Speak the current sentence to its end, and no others; then `run` raises `ShuttingDown`."""
        self._draining = True
        if self._delivery is not None:
            self._text.clear()
        self.queue.clear()
        self.queue.put(QueueMark.STOP)

    async def stop(self) -> None:
        """Cancel all jobs before waiting for anything. Nothing more of the text is sent."""
        self.queue.stop()
        if self._delivery is not None:
            self._text.clear()
        if self._speaking is not None:
            self._speaking.cancel()
            await asyncio.gather(self._speaking, return_exceptions=True)

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _check_not_ended(self) -> None:
        if self._ended:
            raise InvalidInput(
                "The text has ended: nothing but 'cancel' can follow 'end'.", code="invalid_event", param="type"
            )

    def _check_room(self, characters: int) -> None:
        limit = self._processor.settings.max_speech_chars
        if self.queue.characters + self._text.waiting_characters + characters > limit:
            raise InvalidInput(
                f"More than {limit} characters would wait to be spoken; this message was not taken.",
                code="string_above_max_length",
                param="text",
            )

    def _add(self, found: list[str]) -> None:
        self.queue.add([TextSpan(text, 0, len(text)) for text in found], self._delivered)

    def _language_of(self, first_sentence: str) -> str:
        """Return the language of a text by its first sentence. Another engine may have to speak that language."""
        self._delivery = self._processor.delivery(self._delivered.options, first_sentence)
        return self._delivery.language

    @property
    def _delivered(self) -> Delivery:
        assert self._delivery is not None, "start comes first"
        return self._delivery

    async def _speak_all(self) -> None:
        while True:
            item = await self.queue.first()
            if isinstance(item, QueuedSentence):
                spoken = await self._processor.speak_file(self.queue, self._emit)
                self._file_begin_samples += spoken.encoded.samples
                continue
            self.queue.begin(item)
            match item:
                case QueueMark.FLUSH:
                    await self._notify({"type": "flushed"})
                case QueueMark.END:
                    sent = {"sentences": self.sentences_done, "duration_ms": _ms(self.sent_samples)}
                    await self._notify({"type": "done", **sent})
                    return
                case QueueMark.STOP:
                    raise ShuttingDown()


def _ms(samples: int) -> int:
    return round(samples * 1000 / SPEECH_RATE)


class SpeechSessions:
    """The open sessions of the server. For one event loop."""

    def __init__(self, processor: SpeechProcessor) -> None:
        self._processor = processor
        self._open: set[SpeechSession] = set()

    def open(self, send: Send, share: str = "") -> SpeechSession:
        """Open a session. `share`: its key or address, for fairness. Raises `speech_unavailable` and `ShuttingDown`."""
        self._processor.check_open()
        session = SpeechSession(self._processor, send, share)
        self._open.add(session)
        self._processor.queues.add(session.queue)
        return session

    async def close(self, session: SpeechSession, owner: str) -> None:
        """Close a session whose connection has ended."""
        self._open.discard(session)
        self._processor.queues.discard(session.queue)
        await session.stop()
        session.closed.set()
        key = {"key": fingerprint(owner)} if owner else {}
        logger.info(
            "speech session",
            session=session.id,
            characters=session.characters,
            sentences=session.sentences_done,
            audio_s=round(session.sent_samples / SPEECH_RATE, 3),
            cancels=session.cancels,
            **key,
        )

    async def drain(self) -> None:
        """Take no more texts. Let every open session speak its current sentence, and end it with `ShuttingDown`."""
        self._processor.is_draining = True
        sessions = list(self._open)
        for session in sessions:
            session.finish_sentence()
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await asyncio.gather(*(session.closed.wait() for session in sessions))
        except TimeoutError:
            logger.warning("speech sessions not finished in time", sessions=len(self._open))
