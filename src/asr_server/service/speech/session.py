"""A session that speaks a text while it arrives: pieces of text in, audio out, and everything stops on a cancel.

Everything runs on the event loop. One task speaks; it waits until its last event was taken, so the engine is at most
two sentences ahead of what the client takes. The sentences to come are queued at the engine when they arrive.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from asr_server.audio.encoding.client import AudioEncoder, EncodedStream
from asr_server.core.errors import DeadlineExceeded, InvalidEvent, SessionExpired, ShuttingDown, TextTooLong
from asr_server.engine.speech.client import SpeechStream
from asr_server.scheduling.admission import AdmissionTicket
from asr_server.scheduling.job import Priority
from asr_server.service.speech.arriving_text import ArrivedSentence, ArrivingText
from asr_server.service.speech.durations import spoken_s
from asr_server.service.speech.outbox import (
    Flushed,
    SentenceEnded,
    SentenceStarted,
    SessionDone,
    SessionEvent,
    SessionStarted,
    SpeechCancelled,
    SpeechOutbox,
    SpokenAudio,
)
from asr_server.service.speech.requests import AudioChunk, SpeechEvent, SpeechRequest
from asr_server.service.speech.script import Delivery
from asr_server.service.speech.synthesis import SentenceInProgress, SpeechProcessor

# Sentences at the engine: the one whose audio is being taken, and two ahead of it.
_UNDER_WAY = 3


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """`characters`: the most that may wait to be spoken. `sentence_s`: the time of a sentence at the engine. `idle_s`:
    how long a session lasts that neither hears nor says anything."""

    characters: int
    sentence_s: float
    idle_s: float


class _Mark(Enum):
    FLUSH = "flush"
    END = "end"
    STOP = "stop"  # the server ends


@dataclass(slots=True, eq=False)
class _Queued:
    """A sentence that waits. `stream`: once it is at the engine."""

    sentence: ArrivedSentence
    duration_s: float
    stream: SpeechStream | None = None


class SpeechSession:
    """Made by `SpeechSessions`. `start` comes first. Nothing of the engine is used before the first sentence."""

    def __init__(self, processor: SpeechProcessor, encoder: AudioEncoder, limits: SessionLimits) -> None:
        self.id = f"speech_{secrets.token_hex(4)}"
        self.closed = asyncio.Event()  # set by `SpeechSessions` once the connection has ended
        self.characters = self.cancels = 0
        # Of all texts of the session: what was taken.
        self.sentences_begun = self.sentences_done = self.sent_samples = 0
        self._processor, self._encoder, self._limits = processor, encoder, limits
        self._delivery: Delivery | None = None
        self._outbox = SpeechOutbox()
        self._queue: deque[_Queued | _Mark] = deque()
        self._queued_characters, self._unspoken_s = 0, 0.0
        self._arrived = asyncio.Event()  # there is something in the queue
        self._current: _Queued | None = None
        self._file_begin_samples = 0  # of the present file among all samples
        self._task: asyncio.Task[None] | None = None
        self._held = ExitStack()  # the engine's lease and the ticket, while there is something to speak
        self._ticket: AdmissionTicket | None = None
        self._ended = self._draining = False
        self._active_s = time.monotonic()

    @property
    def started(self) -> bool:
        """Whether it is known how to speak."""
        return self._delivery is not None

    # -- from the client ---------------------------------------------------------------------------------------------

    async def start(self, request: SpeechRequest) -> None:
        """State how texts are to be spoken; the request's own text is empty.

        Raises what is wrong with the request, and `InvalidEvent` the second time.
        """
        if self._delivery is not None:
            raise InvalidEvent("The session has started: 'start' is the first message or none.", param="type")
        self._delivery = delivery = self._processor.delivery(request)
        language = delivery.language if request.language is not None else None
        self._text = ArrivingText(language, delivery.language, self._language_of)
        self._begin()
        await self._outbox.put(SessionStarted(self.id, request.format, delivery.ignored))

    def push(self, piece: str) -> None:
        """The next piece of the text. Raises `TextTooLong` and takes nothing of it if too much waits.

        Raises `UnsupportedLanguage` where no voice speaks that of the text, which is then forgotten; `Overloaded`.
        """
        self._check_not_ended()
        if self._draining:
            return
        self._check_room(len(piece))
        self.characters += len(piece)
        self._enqueue(self._text.push(piece))

    def flush(self) -> None:
        """Speak everything that has arrived, and complete its file. Raises as `push`."""
        self._check_not_ended()
        if self._draining:
            return
        self._check_room(1)
        self._enqueue(self._text.end())
        self._mark(_Mark.FLUSH)

    def end(self) -> None:
        """Speak everything that has arrived; then `events` ends. Raises as `push`."""
        self._check_not_ended()
        if self._draining:
            return
        self._enqueue(self._text.end())
        self._ended = True
        self._mark(_Mark.END)

    async def cancel(self) -> None:
        """Stop: the engine's jobs are cancelled and what waits is forgotten. Returns when the client was told so."""
        if self._draining:
            return
        self.cancels += 1
        self._outbox.drop_speech()
        await self._stop()
        self._file_begin_samples = self.sent_samples
        if self._ended:
            self._mark(_Mark.END)
        self._begin()
        await self._outbox.put(SpeechCancelled(self.sentences_done, self.sent_samples))

    def touch(self) -> None:
        """The client has said something."""
        self._active_s = time.monotonic()

    # -- to the client -----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[SessionEvent]:
        """Everything to tell the client. Raises `SessionExpired`, `ShuttingDown` and what ended the session."""
        while True:
            try:
                event = await self._outbox.take(self._idle_left_s())
            except TimeoutError:
                if self._idle_left_s() > 0:
                    continue
                raise SessionExpired("The session was idle for too long.") from None
            if event is None:
                return
            self.touch()
            self._note_taken(event)
            yield event

    def _note_taken(self, event: SessionEvent) -> None:
        match event:
            case SentenceStarted(index=index):
                self.sentences_begun = index + 1
            case SpokenAudio(end_samples=end_samples):
                self.sent_samples = end_samples
            case SentenceEnded():
                self.sentences_done += 1

    def _idle_left_s(self) -> float:
        if self._queue or self._current is not None:
            return self._limits.idle_s
        return max(0.0, self._active_s + self._limits.idle_s - time.monotonic())

    # -- from the server ---------------------------------------------------------------------------------------------

    def finish_sentence(self) -> None:
        """Speak the present sentence to its end and no other; then `events` raises `ShuttingDown`."""
        self._draining = True
        if self._delivery is None:
            self._outbox.close(_shutting_down())
            return
        self._forget_queued()
        self._mark(_Mark.STOP)

    async def close(self) -> None:
        """Cancel everything; no more events come."""
        self._outbox.close()
        await self._stop()

    # -- the queue ---------------------------------------------------------------------------------------------------

    def _check_not_ended(self) -> None:
        if self._ended:
            raise InvalidEvent("The text has ended: nothing but 'cancel' can follow 'end'.", param="type")

    def _check_room(self, characters: int) -> None:
        limit = self._limits.characters
        if self._queued_characters + self._text.waiting_characters + characters > limit:
            raise TextTooLong(
                f"More than {limit} characters would wait to be spoken; this message was not taken.", param="text"
            )

    def _language_of(self, first_sentence: str) -> str:
        assert self._delivery is not None
        return self._processor.delivery(replace(self._delivery.request, text=first_sentence)).language

    def _enqueue(self, found: list[ArrivedSentence]) -> None:
        if not found:
            return
        assert self._delivery is not None
        if self._ticket is None:
            with ExitStack() as begun:
                self._ticket = begun.enter_context(self._processor.admission.hold_live())
                begun.enter_context(self._delivery.client.lease())
                self._held = begun.pop_all()
        for sentence in found:
            queued = _Queued(sentence, spoken_s(sentence.text) / self._delivery.encoding.speed)
            self._queue.append(queued)
            self._count(queued, 1)
        self._look_ahead()
        self._arrived.set()

    def _mark(self, mark: _Mark) -> None:
        self._queue.append(mark)
        self._count(mark, 1)
        self._arrived.set()

    def _count(self, item: _Queued | _Mark, sign: int) -> None:
        """What is in the queue. A mark counts as a character, so that marks have a bound too."""
        if isinstance(item, _Mark):
            self._queued_characters += sign
            return
        self._queued_characters += sign * len(item.sentence.text)
        self._unspoken_s = max(0.0, self._unspoken_s + sign * item.duration_s)
        if self._ticket is not None:
            self._ticket.seconds = self._unspoken_s

    def _look_ahead(self) -> None:
        """Queue the next sentences at the engine."""
        assert self._delivery is not None
        client = self._delivery.client
        sentences = (item for item in self._queue if isinstance(item, _Queued))
        for queued in islice(sentences, _UNDER_WAY - (self._current is not None)):
            if queued.stream is None:
                how = replace(self._delivery, language=queued.sentence.language)
                queued.stream = client.speak(
                    how.row(queued.sentence.text),
                    priority=Priority.INTERACTIVE,
                    duration_s=queued.duration_s,
                    deadline_s=client.clock.now_s() + self._limits.sentence_s,
                )

    def _forget_queued(self) -> None:
        for item in self._queue:
            if isinstance(item, _Queued) and item.stream is not None:
                item.stream.cancel()
        self._queue.clear()
        self._queued_characters, self._unspoken_s = 0, 0.0
        if self._delivery is not None:
            self._text.clear()

    def _release(self) -> None:
        self._ticket = None
        self._held.close()

    async def _stop(self) -> None:
        """Cancel all jobs before anything is waited for."""
        if self._current is not None and self._current.stream is not None:
            self._current.stream.cancel()
        self._current = None
        self._forget_queued()
        self._release()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    # -- the task that speaks ----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._speak_all())
        self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and task is self._task:
            self._outbox.close(error if isinstance(error, Exception) else None)

    async def _speak_all(self) -> None:
        while True:
            item = await self._first()
            if isinstance(item, _Queued):
                await self._speak_file()
                continue
            self._leave_queue(item)
            match item:
                case _Mark.FLUSH:
                    await self._outbox.put(Flushed())
                case _Mark.END:
                    await self._outbox.put(SessionDone(self.sentences_done, self.sent_samples))
                    self._outbox.close()
                    return
                case _Mark.STOP:
                    self._outbox.close(_shutting_down())
                    return

    async def _first(self) -> _Queued | _Mark:
        """The first in the queue, where it stays. Without a sentence nothing is held of the engine."""
        while not self._queue:
            self._release()
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue[0]

    def _leave_queue(self, first: _Queued | _Mark) -> None:
        self._queue.popleft()
        self._count(first, -1)

    async def _speak_file(self) -> None:
        """The sentences up to the next mark, as one file."""
        assert self._delivery is not None
        async with self._encoder.stream(self._delivery.encoding) as encoded:
            while isinstance(queued := await self._first(), _Queued):
                await self._speak(queued, encoded)
            if rest := await encoded.finish():
                await self._outbox.put(SpokenAudio(rest, self._file_begin_samples + encoded.samples))
            self._file_begin_samples += encoded.samples

    async def _speak(self, queued: _Queued, encoded: EncodedStream) -> None:
        self._leave_queue(queued)
        self._current = queued
        self._look_ahead()
        assert queued.stream is not None
        index, begin_samples = self.sentences_begun, encoded.samples

        async def emit(event: SpeechEvent) -> None:
            assert isinstance(event, AudioChunk)
            await self._outbox.put(SpokenAudio(event.data, self._file_begin_samples + encoded.samples))

        start_samples = self._file_begin_samples + begin_samples
        await self._outbox.put(SentenceStarted(index, queued.sentence.text, start_samples))
        try:
            await SentenceInProgress(queued.stream, encoded, index, emit).encode(is_last=False)
        except TimeoutError:
            raise DeadlineExceeded("The time limit of a sentence passed while it was spoken.") from None
        self._current = None
        await self._outbox.put(SentenceEnded(index, encoded.samples - begin_samples))


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("The server is shutting down.")
