"""A session that speaks a text while it arrives: pieces of text in, audio out, and everything stops on a cancel.

Everything runs on the event loop. One task speaks; it waits until its last event was taken, so the engine is at most
two sentences ahead of what the client takes. The sentences to come are queued at the engine when they arrive.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from asr_server.core.errors import DeadlineExceeded, InvalidEvent, SessionExpired, ShuttingDown, TextTooLong
from asr_server.features.speech_output.arriving_text import ArrivingText
from asr_server.features.speech_output.encoding.client import EncodedStream
from asr_server.features.speech_output.encoding.formats import EncodingOptions, SpeechFormat
from asr_server.features.speech_output.outbox import (
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
from asr_server.features.speech_output.queue import QueuedSentence, QueueMark, SpeechQueue
from asr_server.features.speech_output.requests import AudioChunk, SpeechEvent, SpeechRequest
from asr_server.features.speech_output.script import Delivery
from asr_server.features.speech_output.synthesis import SentenceInProgress, SpeechObserver, SpeechProcessor
from asr_server.net.loop_time import TimeSlice
from asr_server.schedule.ports import JobEnd

# The part of a text that is divided into sentences at once, which takes at most 3 ms.
_SLICE_CHARACTERS = 256
# After a slice the session rests this many times as long, so that it takes a small part of the event loop.
_REST = 8
# Texts that a client may cancel in a row, and in a second for a long time.
_CANCELS, _CANCELS_PER_S = 8, 2.0


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of one session."""

    characters: int  # the most that may wait to be spoken
    sentence_s: float  # the time of a sentence at the engine
    idle_s: float  # how long a session lasts that neither gets nor sends anything


class SpeechSession:
    """Made by `SpeechSessions`. `start` comes first. Nothing of the engine is used before the first sentence."""

    def __init__(
        self, processor: SpeechProcessor, limits: SessionLimits, observer: SpeechObserver, share: str = ""
    ) -> None:
        self.id = f"speech_{secrets.token_hex(4)}"
        self.closed = asyncio.Event()  # set by `SpeechSessions` once the connection has ended
        self.characters = self.cancels = 0
        # Counts of what the client has taken, over all texts of the session.
        self.sentences_begun = self.sentences_done = self.sent_samples = 0
        self._processor, self._limits, self._observer = processor, limits, observer
        self._delivery: Delivery | None = None
        self._outbox = SpeechOutbox()
        self._queue = SpeechQueue(processor.admission, limits.sentence_s, share)
        self._file_begin_samples = self._file_bytes = 0  # of the present file: its place in all samples, what was made
        self._task: asyncio.Task[None] | None = None
        self._ended = self._draining = False
        self._slice = TimeSlice()
        self._cancels_left, self._cancelled_s = float(_CANCELS), 0.0
        self._active_s = time.monotonic()

    @property
    def started(self) -> bool:
        """True if the options of speaking are known."""
        return self._delivery is not None

    @property
    def sentences_left(self) -> int:
        """The number of sentences that are known and not spoken yet."""
        return self._queue.sentences

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

    async def push(self, piece: str) -> None:
        """Take the next piece of the text, a slice at a time: others go on while a long one is divided.

        Raises `TextTooLong` and `Overloaded` and takes nothing of it if too much waits, and `UnsupportedLanguage` where
        no voice speaks that of the text, which is then forgotten.
        """
        self._check_not_ended()
        if self._draining:
            return
        self._check_room(len(piece))
        self._queue.check(piece, self._delivered)
        self.characters += len(piece)
        for begin in range(0, len(piece), _SLICE_CHARACTERS):
            await self._slice.next_round()
            began_s = time.monotonic()
            if not self._draining:
                self._queue.add(self._text.push(piece[begin : begin + _SLICE_CHARACTERS]), self._delivered)
            await asyncio.sleep(_REST * (time.monotonic() - began_s))

    def flush(self) -> None:
        """Speak everything that has arrived, and complete its file. Raises as `push`."""
        self._check_not_ended()
        if self._draining:
            return
        self._check_room(1)
        self._end_text(QueueMark.FLUSH)

    def end(self) -> None:
        """Speak everything that has arrived; then `events` ends. Raises as `push`."""
        self._check_not_ended()
        if self._draining:
            return
        self._ended = True
        self._end_text(QueueMark.END)

    async def cancel(self) -> None:
        """Cancel the engine's jobs and forget all that waits. Returns when the client was told so.

        At the server's end the session is over instead.
        """
        self.cancels += 1
        self._outbox.drop_speech()
        await self._stop()
        if self._draining:
            self._outbox.close(_shutting_down())
            return
        self._file_begin_samples = self.sent_samples
        if self._ended:
            self._queue.mark(QueueMark.END)
        self._begin()
        await self._outbox.put(SpeechCancelled(self.sentences_done, self.sent_samples))
        await asyncio.sleep(self._rest_after_cancel_s())

    def _rest_after_cancel_s(self) -> float:
        """Return how long the client's next message has to wait: each cancelled text has begun work for nothing."""
        now_s = time.monotonic()
        self._cancels_left = min(_CANCELS, self._cancels_left + (now_s - self._cancelled_s) * _CANCELS_PER_S) - 1
        self._cancelled_s = now_s
        return max(0.0, -self._cancels_left / _CANCELS_PER_S)

    def touch(self) -> None:
        """Note that the client has sent something."""
        self._active_s = time.monotonic()

    # -- to the client -----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[SessionEvent]:
        """Yield the events for the client. Raises `SessionExpired`, `ShuttingDown` and what ended the session."""
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
        if self._queue or self._queue.current is not None:
            return self._limits.idle_s
        return max(0.0, self._active_s + self._limits.idle_s - time.monotonic())

    # -- from the server ---------------------------------------------------------------------------------------------

    def finish_sentence(self) -> None:
        """Speak the present sentence to its end, and no others; then `events` raises `ShuttingDown`."""
        self._draining = True
        if self._delivery is None:
            self._outbox.close(_shutting_down())
            return
        self._text.clear()
        self._queue.clear()
        self._queue.mark(QueueMark.STOP)

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
        if self._queue.characters + self._text.waiting_characters + characters > limit:
            raise TextTooLong(
                f"More than {limit} characters would wait to be spoken; this message was not taken.", param="text"
            )

    def _end_text(self, mark: QueueMark) -> None:
        try:
            self._queue.add(self._text.end(), self._delivered)
        finally:  # also where the rest of the text cannot be spoken
            self._queue.mark(mark)

    def _language_of(self, first_sentence: str) -> str:
        """Return the language of a text by its first sentence, in which another engine may have to speak."""
        self._delivery = self._processor.delivery(replace(self._delivered.request, text=first_sentence))
        return self._delivery.language

    @property
    def _delivered(self) -> Delivery:
        assert self._delivery is not None, "start comes first"
        return self._delivery

    async def _stop(self) -> None:
        """Cancel all jobs before anything is waited for."""
        self._queue.stop()
        if self._delivery is not None:
            self._text.clear()
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
            item = await self._queue.first()
            if isinstance(item, QueuedSentence):
                await self._speak_file(item.how.encoding)
                continue
            self._queue.begin(item)
            match item:
                case QueueMark.FLUSH:
                    await self._outbox.put(Flushed())
                case QueueMark.END:
                    await self._outbox.put(SessionDone(self.sentences_done, self.sent_samples))
                    self._outbox.close()
                    return
                case QueueMark.STOP:
                    self._outbox.close(_shutting_down())
                    return

    async def _speak_file(self, encoding: EncodingOptions) -> None:
        """Speak the sentences up to the next mark, as one file."""
        end, self._file_bytes = JobEnd.FAILED, 0
        try:
            async with self._processor.encoder.stream(encoding) as encoded:
                while isinstance(queued := await self._queue.first(), QueuedSentence):
                    await self._speak(queued, encoded)
                if rest := await encoded.finish():
                    await self._put_audio(rest, encoded)
                self._file_begin_samples += encoded.samples
            end = JobEnd.DONE
        except DeadlineExceeded:
            end = JobEnd.EXPIRED
            raise
        except asyncio.CancelledError:
            end = JobEnd.CANCELLED
            raise
        finally:
            self._observer.answered(encoding.format, end)

    async def _speak(self, queued: QueuedSentence, encoded: EncodedStream) -> None:
        self._queue.begin(queued)
        assert queued.stream is not None
        index, begin_samples = self.sentences_begun, encoded.samples

        async def emit(event: SpeechEvent) -> None:
            assert isinstance(event, AudioChunk)
            await self._put_audio(event.data, encoded)

        start_samples = self._file_begin_samples + begin_samples
        await self._outbox.put(SentenceStarted(index, queued.text, start_samples))
        is_first = not self._file_bytes
        in_progress = SentenceInProgress(queued.stream, encoded, index, emit)
        try:
            await in_progress.encode(is_last=False)
        except TimeoutError:
            raise DeadlineExceeded("The time limit of a sentence passed while it was spoken.") from None
        self._queue.finish()
        self._note_spoken(queued, in_progress, is_first=is_first)
        await self._outbox.put(SentenceEnded(index, encoded.samples - begin_samples))

    def _note_spoken(self, queued: QueuedSentence, spoken: SentenceInProgress, *, is_first: bool) -> None:
        self._observer.encoded(spoken.encode_s)
        first_audio_ms = spoken.timings(queued.arrived_s).first_audio_ms
        if is_first and first_audio_ms:
            self._observer.first_audio(first_audio_ms / 1000)

    async def _put_audio(self, data: bytes, encoded: EncodedStream) -> None:
        """Put a piece of audio into the outbox.

        The samples of a piece of compressed audio are those that the encoder has received.
        """
        self._file_bytes += len(data)
        is_pcm = self._delivered.encoding.format is SpeechFormat.PCM
        samples = self._file_bytes // 2 if is_pcm else encoded.samples
        await self._outbox.put(SpokenAudio(data, self._file_begin_samples + samples))


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("The server is shutting down.")
