"""A recording to its transcript: decode, cut into spans, one job a span, join. One channel between two tasks.

The producer decodes, cuts and queues the spans with the engine, a bounded number ahead. The consumer takes them from
the channel in the order of the recording and emits events: all that a stream sends, and all that a whole answer needs.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.audio.decode import Progress
from asr_server.core.audio import samples_to_ms
from asr_server.core.errors import DeadlineExceeded
from asr_server.core.transcript import Segment, Timings, Transcript
from asr_server.engine.client import until
from asr_server.features.speakers.recording_speakers import ChannelSpeakers, RecordingSpeakers
from asr_server.features.stereo.channels import NUMBER_IGNORED, ChannelPlan, channel_plan
from asr_server.recordings.requests import CONTEXT_IGNORED
from asr_server.recordings.segmenter import segmentation_config
from asr_server.recordings.span import SpanContext, SpanTask
from asr_server.schedule.job import Priority
from asr_server.text import joining

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Source
    from asr_server.engine.client import EngineClient, Transcription
    from asr_server.features.speakers.diarization.client import SpeakerClient
    from asr_server.features.speakers.speaker_names import RecordingNames, SpeakerNames
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import SpeechSpan
    from asr_server.recordings.span import SpanResult
    from asr_server.schedule.admission import Admission, AdmissionTicket

# "Okay" and "ja" are words of many languages. A longer segment tells which one it is in.
_OUTLIER_MS = 3000
# Longer recordings are bulk work: they give way to short ones, whose callers wait in front of a screen.
_BULK_OVER_S = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """Speech or the end of the recording was found. What fails later fails in the middle of an answer.

    `claimed_s`: how long the recording says that it is, 0 if it does not say.
    """

    claimed_s: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text after all deltas before it. It is never taken back."""

    text: str


@dataclass(frozen=True, slots=True)
class SegmentDone:
    """The next segment in the order of the recording; its text may be empty."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class SegmentLabelled:
    """A segment whose speaker is known. All of them follow the last `SegmentDone`, in order: a `SegmentDone` of several
    speakers is divided."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. With deltas, the text is that of all deltas, character for character."""

    transcript: Transcript


Event = Started | TextDelta | SegmentDone | SegmentLabelled | Finished
Emit = Callable[[Event], Awaitable[None]]


async def ignore(event: Event) -> None:
    """Ignore the event. For callers that want the transcript alone."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The conditions under which a recording is processed, besides its request.

    `timeout_s`, by the engine's request clock: None means the server's limit for one request. `deltas`: whether
    `TextDelta`s are emitted. `caller`: who shares the decoders with others, "" where nobody is told apart.
    `owner`: whose stored voices are recognised.
    """

    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None
    deltas: bool = False
    caller: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class PipelineResources:
    """What all recordings share. `engine`: of the default model; `others`: of further models by name. `timeout_s`: the
    limit for one request. `look_ahead`: the number of spans of one recording that are decoded and queued before the
    first of them is taken. `speakers`, `names`: None where speakers cannot be told apart."""

    decoder: Decoder
    engine: EngineClient
    admission: Admission
    timeout_s: float
    look_ahead: int = 16
    others: Mapping[str, EngineClient] = field(default_factory=dict)
    speakers: SpeakerClient | None = None
    names: SpeakerNames | None = None

    def engine_of(self, model: str) -> EngineClient:
        """What transcribes for a name of a model: every name that is not another model's means the default."""
        return self.others.get(model, self.engine)


class RecordingPipeline:
    """Transcribes recordings, many at once. The heavy work is in the decoder's child and on the engine thread.

    A recording is decoded while it is transcribed, so the memory it takes does not grow with its length.
    """

    def __init__(self, resources: PipelineResources) -> None:
        self._resources = resources

    def check_room(self) -> None:
        """Raise `Overloaded` if a recording could not be answered in time. For the time before a body is read."""
        self._resources.admission.check()

    async def transcribe(
        self, source: Source, request: RecordingRequest, options: RunOptions, emit: Emit = ignore
    ) -> Transcript:
        """Transcribe a file-like object with a real file descriptor. The transcript is also the last event.

        Raises the leaves of `InvalidInput` for bad audio, `Overloaded`, `DeadlineExceeded`, and `EngineError`s.
        Cancelling takes the recording's jobs out of the queue and out of the batch, and ends its decoding.
        """
        limit_s, clock = options.timeout_s or self._resources.timeout_s, self._resources.engine.clock
        deadline_s = clock.now_s() + limit_s
        try:
            async with until(clock, deadline_s):
                transcript = await self._transcribe(source, request, options, emit, deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"The recording was not transcribed within the server's limit of {limit_s:g} s."
            ) from None
        await emit(Finished(transcript))
        return transcript

    async def _transcribe(
        self, source: Source, request: RecordingRequest, options: RunOptions, emit: Emit, deadline_s: float
    ) -> Transcript:
        resources = self._resources
        engine = resources.engine_of(request.model)
        is_bulk, limit_s = options.priority is Priority.BULK, options.timeout_s or resources.timeout_s
        with engine.lease(), resources.admission.hold(time_limit_s=limit_s, bulk=is_bulk) as ticket:
            names = await self._names(request, options)
            try:
                # Left in any way, the group first cancels what still runs: decoder, queued jobs, rows of the batch.
                async with asyncio.TaskGroup() as group:
                    context = SpanContext(engine, group, request, deadline_s, options.deltas)
                    producer = _Producer(resources, ticket, context, options, names)
                    assembly = _Assembly(emit, producer.on_done, options.deltas)
                    group.create_task(producer.run(source))
                    await assembly.run(producer)
                    await assembly.label(producer)
            except ExceptionGroup as failures:
                # Only the assembly raises: there is one error, and callers want that and no group.
                error = failures.exceptions[0]
                raise error from error.__cause__
            resources.admission.finish(ticket, producer.work_s)
        transcript = assembly.transcript(samples_to_ms(producer.progress.decoded_samples), request.language)
        warnings = [producer.plan.warning] if producer.plan.warning else []
        if producer.plan.is_split and request.speakers is not None and request.speakers.states_number:
            warnings.append(NUMBER_IGNORED)
        if request.context and not engine.traits.uses_context:
            logger.warning(CONTEXT_IGNORED)
            warnings.append(CONTEXT_IGNORED)
        return replace(transcript, warnings=tuple(warnings))

    async def _names(self, request: RecordingRequest, options: RunOptions) -> RecordingNames | None:
        """Raises what is wrong with the clips of known speakers."""
        if self._resources.names is None or request.speakers is None:
            return None
        return await self._resources.names.recording(request.speakers.known, options.caller, options.owner)


class _Producer:
    """Decodes and cuts one recording and queues its spans. Runs as a task of the recording's group.

    The channel holds the spans in order, then None, or the error that ended the recording. Its size is the look-ahead:
    while it is full, nothing more is cut or decoded.
    """

    def __init__(
        self,
        resources: PipelineResources,
        ticket: AdmissionTicket,
        context: SpanContext,
        options: RunOptions,
        names: RecordingNames | None,
    ) -> None:
        self.progress = Progress()
        self.plan = ChannelPlan()
        self.speakers: RecordingSpeakers | None = None
        self.channels: ChannelSpeakers | None = None
        self._channel: asyncio.Queue[SpanTask | Exception | None] = asyncio.Queue(resources.look_ahead)
        self._resources = resources
        self._ticket = ticket
        self._context = context
        self._names = names
        self._priority = options.priority
        self._caller = options.caller
        self._is_first = True

    @property
    def tells_speakers(self) -> bool:
        """Whether the request has speakers told apart, and they are."""
        by_channel = self.plan.is_split and self._context.request.speakers is not None
        return by_channel or self.speakers is not None

    @property
    def work_s(self) -> float:
        """Seconds of audio to transcribe, as far as the recording is decoded."""
        return self.plan.work * self.progress.decoded_s

    async def run(self, source: Source) -> None:
        """Fill the queue."""
        try:
            await self._produce(source)
            for found in (self.speakers, self.channels):
                if found is not None:
                    await found.end()
            await self._channel.put(None)
        except Exception as error:
            # In its place in the channel: what was said before the damage is answered first.
            await self._channel.put(error)

    def on_done(self, done_s: float) -> None:
        """The recording is answered as far as that."""
        self._resources.admission.progress(self._ticket, self.plan.work * done_s)

    async def next(self) -> SpanTask | None:
        """Return the next span, or None at the end. Raises the error that ended the recording."""
        item = await self._channel.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def _produce(self, source: Source) -> None:
        request, decoder, progress = self._context.request, self._resources.decoder, self.progress
        client = self._resources.speakers
        self.plan = plan = await channel_plan(decoder, source, request.channel_mode, self._caller)
        if self._names is not None and plan.is_split:
            self.channels = ChannelSpeakers(self._names.of_channels)
        elif self._names is not None and client is not None and request.speakers is not None:
            self.speakers = RecordingSpeakers(client, request.speakers, self._names.of)
            self._context.group.create_task(self.speakers.run())
        segmenter = plan.segmenter(segmentation_config(request.chunking, self._context.engine.traits))
        admission = self._resources.admission
        async with aclosing(plan.stream(decoder, source, progress, self._caller)) as blocks:
            async for block in blocks:
                length_s = plan.work * max(progress.claimed_s, progress.decoded_s)
                admission.measure(self._ticket, length_s, bulk=length_s > _BULK_OVER_S)
                if self.speakers is not None:
                    await self.speakers.push(block)
                for span in await asyncio.to_thread(segmenter.push, block):
                    await self._begin(span, length_s)
            admission.measure(self._ticket, self.work_s, bulk=self.work_s > _BULK_OVER_S)
        for span in await asyncio.to_thread(segmenter.finish):
            await self._begin(span, self.work_s)

    async def _begin(self, span: SpeechSpan, length_s: float) -> None:
        is_bulk = self._priority is Priority.INTERACTIVE and length_s > _BULK_OVER_S
        if self.channels is not None:
            self.channels.hear(span)
        task = SpanTask(self._context, span, Priority.BULK if is_bulk else self._priority)
        is_first, self._is_first = self._is_first, False
        await self._channel.put(task)
        if is_first and self._context.deltas:
            # The prefill of the spans behind it would multiply the time to the first word, so they wait for that.
            await task.begun()


class _Assembly:
    """Takes the spans of one recording in order, emits their events and adds them up. The consumer of the channel.

    `on_done` is called with the seconds up to which the recording is answered.
    """

    def __init__(self, emit: Emit, on_done: Callable[[float], None], deltas: bool) -> None:
        self.begun_s = 0.0  # when the first span or the end was found, on the monotonic clock
        self._created_s = time.monotonic()
        self._emit = emit
        self._on_done = on_done
        self._deltas = deltas
        self._text = ""
        self._segments: list[Segment] = []
        self._queue_s = self._infer_s = self._load_s = 0.0

    async def run(self, producer: _Producer) -> None:
        """Empty the queue. Raises the error that ended the recording or a span, in its place."""
        task = await producer.next()
        self.begun_s = time.monotonic()
        await self._emit(Started(producer.progress.claimed_s))
        while task is not None:
            await self._add(task)
            task = await producer.next()

    async def label(self, producer: _Producer) -> None:
        """Give every segment its speaker, if that is wanted. Raises `SpeakersUnavailable`."""
        spoken = [segment for segment in self._segments if segment.text]
        if producer.plan.is_split:
            # A span that was halved may reach behind the beginning of the next one.
            self._segments = sorted(spoken, key=lambda segment: segment.start_ms)
            if producer.channels is not None:
                self._segments = producer.channels.labels(self._segments)
        elif producer.speakers is not None:
            self._segments = list(await producer.speakers.labels(spoken))
        for segment in self._segments if producer.tells_speakers else ():
            await self._emit(SegmentLabelled(segment))

    def transcript(self, duration_ms: int, asked_language: str | None) -> Transcript:
        """Return all segments as one transcript. Without speech the language is the one of the request."""
        spoken = tuple(segment for segment in self._segments if segment.text)
        return Transcript(
            text=self._text if self._deltas else joining.join(segment.text for segment in spoken),
            language=_main_language(spoken) or asked_language or "",
            duration_ms=duration_ms,
            segments=spoken,
            timings=self._timings(),
        )

    async def _add(self, task: SpanTask) -> None:
        is_sent = False
        while self._deltas and (text := await task.next_delta()) is not None:
            await self._add_text(text, opens=not is_sent)
            is_sent = True
        results = await task.results()
        if not self._deltas:
            results = [await self._in_main_language(task, result) for result in results]
        if self._deltas and not is_sent:  # there were no deltas, or the span was tried again
            for result in results:
                if result.segment.text:
                    await self._add_text(result.segment.text, opens=True)
        for result in results:
            self._segments.append(result.segment)
            self._add_times(result.answer.transcription)
            self._on_done(result.segment.end_ms / 1000)
            await self._emit(SegmentDone(result.segment))

    async def _in_main_language(self, task: SpanTask, result: SpanResult) -> SpanResult:
        """A short segment in another language than the speech before it is easily misheard: it is heard in that too."""
        segment = result.segment
        main = _main_language([one for one in self._segments if one.speaker == segment.speaker])
        if not main or segment.language in ("", main) or segment.end_ms - segment.start_ms > _OUTLIER_MS:
            return result
        return await task.likelier(result, main)

    async def _add_text(self, text: str, *, opens: bool) -> None:
        """Emit a piece of text. `opens`: it is the first of a segment."""
        delta = joining.joint(self._text, text) + text if opens else text
        self._text += delta
        await self._emit(TextDelta(delta))

    def _add_times(self, transcription: Transcription) -> None:
        """Add the times of a span: the longest wait counts and the sum of the work, as spans wait at the same time."""
        self._queue_s = max(self._queue_s, transcription.queue_s)
        self._infer_s += transcription.infer_s
        self._load_s = max(self._load_s, transcription.load_s)

    def _timings(self) -> Timings:
        seconds = (self.begun_s - self._created_s, self._queue_s, self._infer_s, self._load_s)
        return Timings(*(1000 * one_s for one_s in seconds))


def _main_language(segments: Sequence[Segment]) -> str:
    """Return the language of most of the speech, by its seconds, since scripts differ in characters; "" for none."""
    weights: Counter[str] = Counter()
    for segment in segments:
        if segment.language:
            weights[segment.language] += segment.end_ms - segment.start_ms
    return weights.most_common(1)[0][0] if weights else ""
