"""A text to audio: sentence by sentence through the engine and the encoder, with the next sentences under way."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, replace

import numpy as np

from asr_server.core.errors import DeadlineExceeded, ShuttingDown, SpeechUnavailable
from asr_server.core.settings import SpeechSettings
from asr_server.engine.client import until
from asr_server.features.speech_output import script
from asr_server.features.speech_output.encoding.client import AudioEncoder, EncodedStream
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.client import SpeechStream
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish
from asr_server.features.speech_output.requests import (
    AudioChunk,
    SentenceBegun,
    SpeechDone,
    SpeechEvent,
    SpeechRequest,
    SpeechTimings,
)
from asr_server.features.speech_output.script import Delivery, SpeechEngines, SpeechScript, spoken_s
from asr_server.processes.caller_work import in_thread
from asr_server.schedule.admission import Admission, AdmissionTicket
from asr_server.schedule.job import Priority
from asr_server.schedule.ports import JobEnd, SchedulerObserver

# Sentences that are queued ahead of the one that is encoded: the engine never waits for the encoder.
_LOOK_AHEAD = 2
# The most bytes of one event. A reader that is slow holds a bounded number of events.
_CHUNK_BYTES = 64 * 1024
# A reader that takes longer for an event plays the audio while it reads, and does not need the rest soon.
_SLOW_S = 1.0
# With a number and an amount: the libraries for these are imported at the first one.
_WARM_UP = "One costs $2.50."
_NOTHING = np.zeros(0, np.float32)

Emit = Callable[[SpeechEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SpeechRun:
    """The conditions under which a request is run."""

    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None  # None: the server's limit


class SpeechObserver(SchedulerObserver):
    """Ignores the events of speech output; to be overridden. All methods must return at once.

    The methods here are called on the event loop, and the inherited ones on the engine's thread.
    """

    def first_audio(self, after_s: float) -> None:
        """Note that the first audio of an interactive answer was ready `after_s` after its text was accepted."""

    def encoded(self, took_s: float) -> None:
        """Note that the encoder took `took_s` for a sentence."""

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """Note that the work for a text is over."""


class SpeechProcessor:
    """Speaks texts of many callers at once. For one event loop.

    `engines`: the engines, or the reason why the server does not speak.
    """

    def __init__(
        self,
        engines: SpeechEngines | str,
        encoder: AudioEncoder,
        admission: Admission,
        settings: SpeechSettings,
        timeout_s: float,
        observer: SpeechObserver | None = None,
    ) -> None:
        self._engines = engines
        self._settings = settings
        self._timeout_s = timeout_s
        self._observer = observer or SpeechObserver()
        self._under_way: set[_TextInProgress] = set()
        self._is_draining = False
        self.encoder = encoder
        self.admission = admission

    @property
    def engines(self) -> SpeechEngines:
        """The engines. Raises `SpeechUnavailable` if the server does not speak."""
        if isinstance(self._engines, str):
            raise SpeechUnavailable(f"This server does not speak: {self._engines}.")
        return self._engines

    def check(self, *, imitates: bool = False) -> None:
        """Raise `SpeechUnavailable` if the server does not speak; with `imitates` also if it imitates no voices."""
        self.engines.check(imitates=imitates)

    @property
    def silent_because(self) -> str:
        """The reason why the server does not speak; "" if it does."""
        return self._engines if isinstance(self._engines, str) else ""

    @property
    def texts(self) -> int:
        return len(self._under_way)

    @property
    def sentences_left(self) -> int:
        return sum(one.sentences_left for one in self._under_way)

    def drain(self) -> None:
        self._is_draining = True

    async def warm_up(self) -> None:
        await self.speak(self.prepare(SpeechRequest(text=_WARM_UP, format=SpeechFormat.PCM)), _drop)

    def delivery(self, request: SpeechRequest) -> Delivery:
        """Return the delivery of a request, without looking at its text. Raises as `script.delivery`."""
        return script.delivery(request, self.engines, self._settings)

    def prepare(self, request: SpeechRequest, share: str = "") -> SpeechScript:
        """Return the script of a request. Raises for a wrong request, `SpeechUnavailable` and `ShuttingDown`.

        `share`: the owner, or an address.
        """
        if self._is_draining:
            raise ShuttingDown("The server is shutting down.")
        prepared = script.prepare(request, self.engines, self._settings)
        return replace(prepared, share=share)

    async def prepare_long(self, request: SpeechRequest, share: str = "") -> SpeechScript:
        """Do as `prepare` in a thread, since live sessions share the event loop."""
        return await in_thread(self.prepare, request, share)

    async def speak(self, prepared: SpeechScript, emit: Emit, run: SpeechRun | None = None) -> SpeechDone:
        """Emit the audio as it is made, `SpeechDone` at last. Cancelling cancels all work.

        Raises `Overloaded`, `DeadlineExceeded`, `SpeechFailed`, `EncoderUnavailable` and what loading raises.
        """
        run = run or SpeechRun()
        timeout_s = run.timeout_s or self._timeout_s
        bulk = run.priority is Priority.BULK
        with self.admission.hold(time_limit_s=timeout_s, bulk=bulk, share=prepared.share) as ticket:
            self.admission.measure(ticket, prepared.duration_s)
            text = _TextInProgress(prepared, emit, SpeechRun(run.priority, timeout_s), self.admission, ticket)
            with self._counted(text):
                try:
                    async with until(prepared.client.clock, text.deadline_s):
                        done = await text.speak(self.encoder, self._observer)
                except TimeoutError:
                    raise DeadlineExceeded("The time limit of the request passed while it was spoken.") from None
            self.admission.finish(ticket, prepared.duration_s)
        await text.emit(done)
        return done

    @contextmanager
    def _counted(self, text: _TextInProgress) -> Iterator[None]:
        end = JobEnd.FAILED
        self._under_way.add(text)
        try:
            yield
            end = JobEnd.DONE
        except DeadlineExceeded:
            end = JobEnd.EXPIRED
            raise
        except asyncio.CancelledError:
            end = JobEnd.CANCELLED
            raise
        finally:
            self._under_way.remove(text)
            self._observer.answered(text.prepared.encoding.format, end)


class _TextInProgress:
    """One text on its way to its reader.

    While the reader does not take what is ready, no further sentence is begun. That time does not count against the
    limit of the request, and the admission counts only the sentences that are begun. For a slow reader it never counts
    the others.
    """

    def __init__(
        self, prepared: SpeechScript, emit: Emit, run: SpeechRun, admission: Admission, ticket: AdmissionTicket
    ) -> None:
        self.prepared = prepared
        self.sentences_left = len(prepared.rows)
        self._emit = emit
        self._priority = run.priority
        self._admission, self._ticket = admission, ticket
        self._clock = prepared.client.clock
        self._limit_s = self._clock.now_s() + (run.timeout_s or math.inf)
        self._waits_since_s: float | None = None
        self._is_slow = False  # the reader
        self._first: SentenceBegun | None = None
        self._rows = iter(prepared.rows)
        self._ahead: deque[SpeechStream] = deque()
        self._queued_s = 0.0

    def deadline_s(self) -> float:
        """The deadline by the request clock. It moves while the text waits for its reader."""
        waiting_s = 0.0 if self._waits_since_s is None else self._clock.now_s() - self._waits_since_s
        return self._limit_s + waiting_s

    async def emit(self, event: SpeechEvent) -> None:
        """Hand an event to the reader. The first one goes with the first audio: an error is then before both."""
        if isinstance(event, SentenceBegun) and event.index == 0:
            self._first = event
            return
        first, self._first = self._first, None
        self._admission.measure(self._ticket, self._queued_s)
        self._waits_since_s = self._clock.now_s()
        try:
            if first is not None:
                await self._emit(first)
            await self._emit(event)
        finally:
            self._is_slow |= self._clock.now_s() - self._waits_since_s > _SLOW_S
            self._limit_s, self._waits_since_s = self.deadline_s(), None
            if not self._is_slow:
                self._admission.measure(self._ticket, self.prepared.duration_s)

    async def speak(self, encoder: AudioEncoder, observer: SpeechObserver) -> SpeechDone:
        """Speak the text. Cancelling cancels all work."""
        prepared = self.prepared
        began_s = time.perf_counter()
        timings, cut_short, spoken = SpeechTimings(), 0, 0.0
        with ExitStack() as stack:
            stack.enter_context(prepared.client.lease())
            stack.callback(_cancel, self._ahead)
            for _ in range(_LOOK_AHEAD):
                self._queue_next()
            async with encoder.stream(prepared.encoding) as encoded:
                for index, span in enumerate(prepared.spans):
                    self._queue_next()
                    await self.emit(SentenceBegun(index, span.text, span.start, span.end))
                    sentence = SentenceInProgress(self._ahead[0], encoded, index, self.emit)
                    finish = await sentence.encode(is_last=index + 1 == len(prepared.spans))
                    self._ahead.popleft()
                    cut_short += finish is SpeechFinish.BUDGET
                    had_audio = timings.first_audio_ms > 0
                    timings = _sum(timings, sentence.timings(began_s))
                    observer.encoded(sentence.encode_s)
                    if not had_audio and timings.first_audio_ms and self._priority is not Priority.BULK:
                        observer.first_audio(timings.first_audio_ms / 1000)
                    spoken += self._seconds(prepared.rows[index])
                    self._admission.progress(self._ticket, spoken)
                    self.sentences_left -= 1
                return SpeechDone(prepared.characters, len(prepared.spans), encoded.samples, cut_short, timings=timings)

    def _queue_next(self) -> None:
        if (row := next(self._rows, None)) is not None:
            self._queued_s += self._seconds(row)
            speak = self.prepared.client.speak
            self._ahead.append(
                speak(row, priority=self._priority, duration_s=spoken_s(row.text), deadline_s=self.deadline_s())
            )

    def _seconds(self, row: Sentence) -> float:
        return spoken_s(row.text) / row.speed / self.prepared.encoding.speed


class SentenceInProgress:
    """One sentence on its way from the engine through the encoder."""

    def __init__(self, stream: SpeechStream, encoded: EncodedStream, index: int, emit: Emit) -> None:
        self._stream, self._encoded, self._index, self._emit = stream, encoded, index, emit
        self.encode_s = self._first_s = 0.0

    async def encode(self, *, is_last: bool) -> SpeechFinish:
        """Emit the sentence's audio as it is ready."""
        async for block in self._stream:
            await self._push(self._encoded.push(block))
        result = await self._stream.result()
        await self._push(self._encoded.push(_NOTHING, ends_sentence=True))
        if is_last:
            await self._push(self._encoded.finish())
        return result.finish

    async def _push(self, pushing: Awaitable[bytes]) -> None:
        began_s = time.perf_counter()
        data = await pushing
        ended_s = time.perf_counter()
        self.encode_s += ended_s - began_s
        if data:
            self._first_s = self._first_s or ended_s
            for begin in range(0, len(data), _CHUNK_BYTES):
                await self._emit(AudioChunk(self._index, data[begin : begin + _CHUNK_BYTES]))

    def timings(self, began_s: float) -> SpeechTimings:
        """Return the times of this sentence; `first_audio_ms` counts from `began_s`."""
        times = self._stream.times
        first_s = self._first_s - began_s if self._first_s else 0.0
        return SpeechTimings(*(1000 * part for part in (times.queue_s, times.infer_s, self.encode_s, first_s)))


async def _drop(event: SpeechEvent) -> None:
    """Ignore the event."""


def _cancel(streams: Iterable[SpeechStream]) -> None:
    for stream in streams:
        stream.cancel()


def _sum(all_so_far: SpeechTimings, sentence: SpeechTimings) -> SpeechTimings:
    first_audio_ms = all_so_far.first_audio_ms or sentence.first_audio_ms
    added = SpeechTimings(*(one + other for one, other in zip(astuple(all_so_far), astuple(sentence), strict=True)))
    return replace(added, first_audio_ms=first_audio_ms)
