"""Texts to audio, for many callers at once: sentences wait in a queue and are spoken in turn, into one file a text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram

from asr_server.core.errors import DeadlineExceeded, EngineError, InvalidInput, ShuttingDown
from asr_server.core.metrics import with_series
from asr_server.core.settings import SpeechSettings
from asr_server.engine.client import until
from asr_server.features.speech_output.encoding.client import AudioEncoder, EncodedStream
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import SpeechFinish, VoiceSample
from asr_server.features.speech_output.queue import QueuedSentence, QueueMark, SpeechQueue
from asr_server.features.speech_output.requests import SpeechOptions, SpeechRequest
from asr_server.features.speech_output.script import Delivery, SpeechEngines, SpeechScript, language_of
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import JobEnd, Priority
from asr_server.text import languages
from asr_server.text.sentences import sentences

# The most bytes of one event. A reader that is slow holds a bounded number of events.
_CHUNK_BYTES = 64 * 1024
_NOTHING = np.zeros(0, np.float32)
# A reader that takes longer than this for an event plays the audio as it reads, and does not need the rest soon.
_SLOW_S = 1.0
# Has a number and an amount of money, because the libraries for these are imported on first use.
_WARM_UP = "One costs $2.50."
# The listener hears silence until the first audio. A sentence takes from a tenth of a second to seconds of work.
SPEECH_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)


class SpeechMetrics:
    """Counters and histograms of texts. Used on the event loop."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.answers = Counter("asr_speech_answers_total", "Ended texts.", ["format", "end"], registry=registry)
        self.first_audio = Histogram(
            "asr_speech_first_audio_seconds",
            "From a text to its first audio, without jobs.",
            registry=registry,
            buckets=SPEECH_S,
        )
        self.encoding = Histogram(
            "asr_speech_encoding_seconds", "Time of a sentence in the encoder.", registry=registry, buckets=SPEECH_S
        )
        with_series(self.answers, SpeechFormat, JobEnd)


@dataclass(frozen=True, slots=True)
class SentenceBegun:
    """The audio of a sentence comes next."""

    index: int
    text: str
    start: int = 0  # its first character in the text of a request
    end: int = 0  # the character after its last
    start_samples: int = 0  # samples of the file before the sentence


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """The next bytes of the audio."""

    data: bytes
    end_samples: int = 0  # samples of the file up to the end of these bytes


@dataclass(frozen=True, slots=True)
class SentenceEnded:
    """All samples of a sentence were made."""

    samples: int  # of the sentence and the pause before it


@dataclass(frozen=True, slots=True)
class SpeechDone:
    """All of a request was spoken."""

    characters: int
    sentences: int
    samples: int  # of the whole answer, at 24 kHz
    cut_short: int = 0  # sentences that the engine stopped at its budget
    first_audio_ms: float = 0.0  # after the acceptance of the text


FileEvent = SentenceBegun | AudioChunk | SentenceEnded
SpeechEvent = FileEvent | SpeechDone
Emit = Callable[[SpeechEvent], Awaitable[None]]
EmitOfFile = Callable[[FileEvent], Awaitable[None]]


@dataclass(slots=True)
class SpokenFile:
    """The sentences of a queue, spoken in turn into one file."""

    queue: SpeechQueue
    queued: QueuedSentence  # the present sentence, or the last
    encoded: EncodedStream
    emit: EmitOfFile  # returns when the reader has taken the event
    metrics: SpeechMetrics
    sentences: int = 0
    cut_short: int = 0  # sentences that the engine stopped at its budget
    first_audio_s: float = 0.0  # after the arrival of its sentence
    size_bytes: int = 0

    async def speak(self) -> None:
        """Speak all sentences up to the next mark."""
        while isinstance(queued := await self.queue.first(), QueuedSentence):
            self.queued = queued
            await self._speak(queued)
        await self._push(self.encoded.finish())

    async def _speak(self, queued: QueuedSentence) -> None:
        self.queue.begin(queued)
        assert queued.stream is not None
        span, begin = queued.span, self.encoded.samples
        await self.emit(SentenceBegun(self.sentences, span.text, span.start, span.end, begin))
        encode_s = 0.0
        async for block in queued.stream:
            encode_s += await self._push(self.encoded.push(block))
        finish = (await queued.stream.answer()).finish
        encode_s += await self._push(self.encoded.push(_NOTHING, ends_sentence=True))
        self.queue.finish()
        self.sentences += 1
        self.cut_short += finish is SpeechFinish.BUDGET
        self.metrics.encoding.observe(encode_s)
        await self.emit(SentenceEnded(self.encoded.samples - begin))

    async def _push(self, pushing: Awaitable[bytes]) -> float:
        """Emit the bytes that are ready, and return the time in the encoder.

        Except for PCM, an event counts the samples that the encoder has received.
        """
        began_s = time.perf_counter()
        data = await pushing
        ended_s = time.perf_counter()
        if data and not self.size_bytes:
            self.first_audio_s = ended_s - self.queued.arrived_s
            if self.queue.priority is not Priority.BULK:
                self.metrics.first_audio.observe(self.first_audio_s)
        is_pcm = self.queued.how.encoding.format is SpeechFormat.PCM
        for begin in range(0, len(data), _CHUNK_BYTES):
            chunk = data[begin : begin + _CHUNK_BYTES]
            self.size_bytes += len(chunk)
            samples = self.size_bytes // 2 if is_pcm else self.encoded.samples
            await self.emit(AudioChunk(chunk, samples))
        return ended_s - began_s


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
        metrics: SpeechMetrics | None = None,
    ) -> None:
        self._engines = engines
        self.settings = settings
        self.timeout_s = timeout_s
        self._metrics = metrics or SpeechMetrics()
        self.is_draining = False  # no text is taken any more
        self.queues: set[SpeechQueue] = set()  # of all requests and sessions
        self.encoder = encoder
        self.admission = admission

    @property
    def engines(self) -> SpeechEngines:
        """The engines. Raises `speech_unavailable` if the server does not speak."""
        if isinstance(self._engines, str):
            raise EngineError(f"This server does not speak: {self._engines}.", code="speech_unavailable")
        return self._engines

    @property
    def silent_because(self) -> str:
        """The reason why the server does not speak; "" if it does."""
        return self._engines if isinstance(self._engines, str) else ""

    @property
    def texts(self) -> int:
        return sum(queue.sentences > 0 for queue in self.queues)

    @property
    def sentences_left(self) -> int:
        return sum(queue.sentences for queue in self.queues)

    def check(self, *, imitates: bool = False) -> None:
        """Raise `speech_unavailable` if the server does not speak; with `imitates` also if it imitates no voices."""
        if self.engines.clone is None and imitates:
            raise EngineError(
                "This server imitates no voices: SPEECH_CLONE_MODEL is not set.", code="speech_unavailable"
            )

    def check_open(self) -> None:
        """Raise `speech_unavailable` and `ShuttingDown` if no text is taken."""
        self.check()
        if self.is_draining:
            raise ShuttingDown()

    async def warm_up(self) -> None:
        if not self.silent_because:
            await self.speak(self.prepare(SpeechRequest(input=_WARM_UP, response_format=SpeechFormat.PCM)), _drop)

    def delivery(self, options: SpeechOptions, text: str, sample: VoiceSample | None = None) -> Delivery:
        """Return how a text is spoken. If the options state no language, the script of the text decides it.

        Raises an error for a wrong voice or language, and `speech_unavailable`.
        """
        self.check(imitates=sample is not None)
        default = self.settings.speech_language
        language = languages.find(options.language).tag if options.language else language_of(text, default)
        chosen = self.engines.choose(None if sample is not None else options.voice, language.lower())
        return Delivery(options, sample, *chosen)

    def prepare(self, request: SpeechRequest, share: str = "", sample: VoiceSample | None = None) -> SpeechScript:
        """Return the script of a request. Raises for a wrong request, `speech_unavailable` and `ShuttingDown`.

        `share`: the owner, or an address.
        """
        self.check_open()
        limit, text = self.settings.max_speech_chars, request.input
        if len(text) > limit:
            raise InvalidInput(
                f"The text has more than {limit} characters; longer ones are jobs.",
                code="string_above_max_length",
                param="input",
            )
        how = self.delivery(request, text, sample)
        spans = sentences(text, how.language)
        if not spans:
            raise InvalidInput("The text has nothing to speak: no letter and no digit.", param="input")
        return SpeechScript(how, len(text), spans, share)

    async def speak(self, prepared: SpeechScript, emit: Emit) -> None:
        """Emit the audio as it is made, and `SpeechDone` at the end. Cancelling cancels all work.

        Raises `Overloaded`, `DeadlineExceeded`, `SpeechFailed`, `EncoderUnavailable` and what loading raises.
        """
        answer = _Answer(prepared, emit, self.admission, prepared.timeout_s or self.timeout_s)
        self.queues.add(answer.queue)
        try:
            answer.queue.add(prepared.spans, prepared.how)
            answer.queue.put(QueueMark.END)
            limit = until(prepared.how.client.thread.request_clock, answer.deadline_s)
            spoken = await self.speak_file(answer.queue, answer.emit, limit=limit)
        finally:
            answer.queue.stop()
            self.queues.remove(answer.queue)
        samples, first_audio_ms = spoken.encoded.samples, 1000 * spoken.first_audio_s
        done = SpeechDone(prepared.characters, spoken.sentences, samples, spoken.cut_short, first_audio_ms)
        await answer.emit(done)

    async def speak_file(
        self, queue: SpeechQueue, emit: EmitOfFile, limit: AbstractAsyncContextManager[object] | None = None
    ) -> SpokenFile:
        """Speak the sentences of a queue up to its next mark, as one file. Raises as `speak`."""
        queued = await queue.first()
        assert isinstance(queued, QueuedSentence)
        encoding = queued.how.encoding
        with self._counted(encoding.format):
            async with limit or nullcontext(), self.encoder.stream(encoding) as encoded:
                file = SpokenFile(queue, queued, encoded, emit, self._metrics)
                await file.speak()
        return file

    @contextmanager
    def _counted(self, audio_format: SpeechFormat) -> Iterator[None]:
        end = JobEnd.FAILED
        try:
            yield
            end = JobEnd.DONE
        except (TimeoutError, DeadlineExceeded):
            end = JobEnd.EXPIRED
            raise DeadlineExceeded("The time limit passed while the text was spoken.") from None
        except asyncio.CancelledError:
            end = JobEnd.CANCELLED
            raise
        finally:
            self._metrics.answers.labels(audio_format, end).inc()


class _Answer:
    """The text of a request on its way to its reader.

    While the reader has not taken an event, no further sentence is begun. This time does not count against the time
    limit of the request, and meanwhile the admission counts only the sentences that are begun. Once a reader has been
    slow, the admission never counts the others again.
    """

    def __init__(self, prepared: SpeechScript, emit: Emit, admission: Admission, timeout_s: float) -> None:
        bulk = prepared.priority is Priority.BULK
        hold = partial(admission.hold, time_limit_s=timeout_s, bulk=bulk, share=prepared.share)
        self.queue = SpeechQueue(admission, hold, lambda clock: self.deadline_s(), prepared.priority)
        self._emit = emit
        self._clock = prepared.how.client.thread.request_clock
        self._limit_s = self._clock.now_s() + timeout_s
        self._waits_since_s: float | None = None
        self._is_slow = False  # the reader
        self._first: SentenceBegun | None = None

    def deadline_s(self) -> float:
        """The deadline by the request clock. It moves while the text waits for its reader."""
        waiting_s = 0.0 if self._waits_since_s is None else self._clock.now_s() - self._waits_since_s
        return self._limit_s + waiting_s

    async def emit(self, event: SpeechEvent) -> None:
        """Hand an event to the reader. The first one waits for the first audio: an earlier error comes before both."""
        if isinstance(event, SentenceEnded):
            return
        if isinstance(event, SentenceBegun) and event.index == 0:
            self._first = event
            return
        first, self._first = self._first, None
        self.queue.count_waiting(False)
        self._waits_since_s = self._clock.now_s()
        try:
            if first is not None:
                await self._emit(first)
            await self._emit(event)
        finally:
            self._is_slow |= self._clock.now_s() - self._waits_since_s > _SLOW_S
            self._limit_s, self._waits_since_s = self.deadline_s(), None
            if not self._is_slow:
                self.queue.count_waiting(True)


async def _drop(event: SpeechEvent) -> None:
    """Ignore the event."""
