"""A text to audio: sentence by sentence through the engine and the encoder, with the next sentences under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace

import numpy as np

from asr_server.audio.encoding.client import AudioEncoder, EncodedStream
from asr_server.core.errors import DeadlineExceeded, SpeechUnavailable
from asr_server.core.speech_settings import SpeechSettings
from asr_server.engine.client import until
from asr_server.engine.speech.client import SpeechStream
from asr_server.engine.speech.protocol import SpeechFinish
from asr_server.scheduling.admission import Admission, AdmissionTicket
from asr_server.scheduling.job import Priority
from asr_server.service.speech import script
from asr_server.service.speech.cache import SpeechCache, SpokenAnswer
from asr_server.service.speech.durations import spoken_s
from asr_server.service.speech.requests import (
    AudioChunk,
    SentenceBegun,
    SpeechDone,
    SpeechEvent,
    SpeechRequest,
    SpeechTimings,
)
from asr_server.service.speech.script import Delivery, SpeechEngines, SpeechScript

# Sentences that are queued ahead of the one that is encoded: the engine never waits for the encoder.
_LOOK_AHEAD = 2
_NOTHING = np.zeros(0, np.float32)

Emit = Callable[[SpeechEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SpeechRun:
    """How a request is run: its class of work, and how long it may take, None for the server's limit."""

    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None


class SpeechProcessor:
    """Speaks texts of many callers at once. For one event loop. `engines`: or the reason why the server is silent."""

    def __init__(
        self,
        engines: SpeechEngines | str,
        encoder: AudioEncoder,
        admission: Admission,
        cache: SpeechCache,
        settings: SpeechSettings,
        timeout_s: float,
    ) -> None:
        self._engines = engines
        self._encoder = encoder
        self._settings = settings
        self._timeout_s = timeout_s
        self.admission = admission
        self.cache = cache

    @property
    def engines(self) -> SpeechEngines:
        """Raises `SpeechUnavailable` where the server is silent."""
        if isinstance(self._engines, str):
            raise SpeechUnavailable(f"This server does not speak: {self._engines}.")
        return self._engines

    def delivery(self, request: SpeechRequest) -> Delivery:
        """How the request's sentences are spoken. Raises what is wrong with it but for its text, and
        `SpeechUnavailable`."""
        return script.delivery(request, self.engines, self._settings)

    def prepare(self, request: SpeechRequest) -> SpeechScript:
        """What is to be spoken how. Raises what is wrong with the request, and `SpeechUnavailable`."""
        return script.prepare(request, self.engines, self._settings)

    def kept(self, prepared: SpeechScript) -> SpokenAnswer | None:
        """The answer to the same request, if it was kept."""
        return self.cache.get(prepared.key) if self.cache.max_bytes else None

    async def speak(self, prepared: SpeechScript, emit: Emit, run: SpeechRun | None = None) -> SpeechDone:
        """Emit the audio as it is made, `SpeechDone` at last. Cancelling cancels all work.

        Raises `Overloaded`, `DeadlineExceeded`, `SpeechFailed`, `EncoderUnavailable` and what loading raises.
        """
        run = run or SpeechRun()
        timeout_s = run.timeout_s or self._timeout_s
        clock = prepared.client.clock
        deadline_s = clock.now_s() + timeout_s
        recorder = _Recorder(emit, self.cache.max_bytes)
        with self.admission.hold(time_limit_s=timeout_s, bulk=run.priority is Priority.BULK) as ticket:
            self.admission.measure(ticket, prepared.duration_s)
            try:
                async with until(clock, deadline_s):
                    done = await self._speak(prepared, recorder.emit, run.priority, deadline_s, ticket)
            except TimeoutError:
                raise DeadlineExceeded("The time limit of the request passed while it was spoken.") from None
            self.admission.finish(ticket, prepared.duration_s)
        if (answer := recorder.answer(done)) is not None:
            self.cache.put(prepared.key, answer)
        await emit(done)
        return done

    async def _speak(
        self, prepared: SpeechScript, emit: Emit, priority: Priority, deadline_s: float, ticket: AdmissionTicket
    ) -> SpeechDone:
        began_s = time.perf_counter()
        timings, cut_short, spoken = SpeechTimings(), 0, 0.0
        with ExitStack() as stack:
            stack.enter_context(prepared.client.lease())
            ahead: deque[SpeechStream] = deque()
            stack.callback(_cancel, ahead)
            rows = iter(prepared.rows)

            def queue_next() -> None:
                row = next(rows, None)
                if row is not None:
                    duration_s = spoken_s(row.text)
                    ahead.append(
                        prepared.client.speak(row, priority=priority, duration_s=duration_s, deadline_s=deadline_s)
                    )

            for _ in range(_LOOK_AHEAD):
                queue_next()
            async with self._encoder.stream(prepared.encoding) as encoded:
                for index, span in enumerate(prepared.spans):
                    queue_next()
                    await emit(SentenceBegun(index, span.text, span.start, span.end))
                    sentence = SentenceInProgress(ahead[0], encoded, index, emit)
                    finish = await sentence.encode(is_last=index + 1 == len(prepared.spans))
                    ahead.popleft()
                    cut_short += finish is SpeechFinish.BUDGET
                    timings = _sum(timings, sentence.timings(began_s))
                    spoken += spoken_s(prepared.rows[index].text) / prepared.encoding.speed
                    self.admission.progress(ticket, spoken)
                return SpeechDone(prepared.characters, len(prepared.spans), encoded.samples, cut_short, timings=timings)


class SentenceInProgress:
    """One sentence on its way from the engine through the encoder."""

    def __init__(self, stream: SpeechStream, encoded: EncodedStream, index: int, emit: Emit) -> None:
        self._stream, self._encoded, self._index, self._emit = stream, encoded, index, emit
        self._encode_s = self._first_s = 0.0

    async def encode(self, *, is_last: bool) -> SpeechFinish:
        """Emit its audio as it is ready."""
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
        self._encode_s += ended_s - began_s
        if data:
            self._first_s = self._first_s or ended_s
            await self._emit(AudioChunk(self._index, data))

    def timings(self, began_s: float) -> SpeechTimings:
        """Of this sentence; `first_audio_ms` since `began_s`."""
        times = self._stream.times
        first_s = self._first_s - began_s if self._first_s else 0.0
        return SpeechTimings(*(1000 * part for part in (times.queue_s, times.infer_s, self._encode_s, first_s)))


def _cancel(streams: Iterable[SpeechStream]) -> None:
    for stream in streams:
        stream.cancel()


def _sum(all_so_far: SpeechTimings, sentence: SpeechTimings) -> SpeechTimings:
    first_audio_ms = all_so_far.first_audio_ms or sentence.first_audio_ms
    added = SpeechTimings(*(one + other for one, other in zip(astuple(all_so_far), astuple(sentence), strict=True)))
    return replace(added, first_audio_ms=first_audio_ms)


class _Recorder:
    """Passes events on and remembers them for the cache, unless they are too many bytes."""

    def __init__(self, emit: Emit, max_bytes: int) -> None:
        self._emit = emit
        self._left_bytes = max_bytes
        self._begun: list[SentenceBegun] = []
        self._data: list[bytearray] = []

    async def emit(self, event: SpeechEvent) -> None:
        """Remember, then pass on."""
        if self._left_bytes >= 0:
            self._remember(event)
        await self._emit(event)

    def _remember(self, event: SpeechEvent) -> None:
        match event:
            case SentenceBegun():
                self._begun.append(event)
                self._data.append(bytearray())
            case AudioChunk(sentence=sentence, data=data):
                self._left_bytes -= len(data)
                self._data[sentence] += data
        if self._left_bytes < 0:
            self._begun, self._data = [], []

    def answer(self, done: SpeechDone) -> SpokenAnswer | None:
        """What to keep; None if it is too large."""
        if self._left_bytes < 0:
            return None
        events: list[SentenceBegun | AudioChunk] = []
        for begun, data in zip(self._begun, self._data, strict=True):
            events += [begun, AudioChunk(begun.index, bytes(data))]
        return SpokenAnswer(tuple(events), replace(done, cached=True, timings=SpeechTimings()))
