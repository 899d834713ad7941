"""Turns a recording into a transcript: decode, cut into spans, run one job for each span, join.

A producer task decodes and cuts the recording and queues its spans with the engine, a bounded number ahead. A consumer
takes the spans from a channel in order and emits events, from which streams and whole answers are made.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from loguru import logger

from asr_server.audio.decode import Decoder, Progress, Samples, Source
from asr_server.core.audio import s_to_ms, samples_to_ms, samples_to_s
from asr_server.core.errors import DeadlineExceeded, InvalidInput, TranslationUnavailable
from asr_server.core.transcript import Segment, Timings, Transcript, UnheardReason
from asr_server.engine.client import EngineClient, until
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.render import Paragraph, paragraphs_of, render, time_source
from asr_server.recordings.requests import (
    CONTEXT_IGNORED,
    ChannelMode,
    RecordingRequest,
    Request,
    ResponseFormat,
    Result,
    SubtitleRequest,
    TranslationRequest,
    WordTimes,
)
from asr_server.recordings.segmenter import (
    RecordingMetrics,
    RecordingSignal,
    SoundLevels,
    check_heard,
    damaged,
    segmentation_config,
    since,
)
from asr_server.recordings.span import (
    LONGEST_S,
    REACH,
    ContextCheck,
    Deadline,
    SpanContext,
    SpanResult,
    SpanTask,
    main_language,
)
from asr_server.schedule.job import Priority
from asr_server.text import scripts

if TYPE_CHECKING:
    from asr_server.audio.segmentation import SpeechSpan
    from asr_server.schedule.admission import Admission, AdmissionTicket

# Longer recordings are bulk work: they give way to short ones, whose callers wait in front of a screen.
BULK_OVER_S = 60.0
# The time limit for assigning speakers after a recording was cut short.
_LABELS_S = 30.0
# The text of a minute is rendered in less than a millisecond, unless it has cues.
_SHORT_CHARS = 800


@dataclass(frozen=True, slots=True)
class Started:
    """Speech or the end of the recording was found. A later error occurs in the middle of an answer."""

    claimed_s: float  # the length that the recording claims, 0 if unknown


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text that follows all earlier deltas. It is never taken back."""

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
    """The last event. With deltas, the text is all deltas joined, character for character."""

    transcript: Transcript
    paragraphs: Sequence[Paragraph] = ()  # if they are requested


Event = Started | TextDelta | SegmentDone | SegmentLabelled | Finished
Emit = Callable[[Event], Awaitable[None]]


async def ignore(event: Event) -> None:
    """Ignore the event. For callers that want only the transcript."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The conditions under which a recording is processed, besides its request."""

    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None  # for the whole recording, by the engine's request clock; None: the server's limits
    deltas: bool = False  # whether `TextDelta`s are emitted
    streams: bool = False  # whether events are shown as they come, so that the first segment waits for no other
    paragraphs: bool = False  # whether `Finished` has paragraphs
    keeps_words: bool = False  # whether words get estimated times even if the answer needs no times
    caller: str = ""  # who shares the decoders with others, "" where callers are not distinguished
    owner: str = ""  # whose stored voices are recognised
    steps: Sequence[PrepareStep] = ()  # for this recording only, after the steps for all recordings
    reports_gaps: bool = False  # the answer reports untranscribed spans, so one of them may fail without the others


class RecordingStep:
    """The work of a feature on one recording while it is transcribed. These methods do nothing."""

    async def push(self, block: Samples) -> None:
        """Take the next samples of the signal, which are not scaled: they may be louder than 1."""

    def hear(self, span: SpeechSpan) -> None:
        """Take the next span."""

    async def end(self) -> None:
        """Take note that no more samples and spans follow."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return which options of the request had no effect, and why. Called after the last segment."""
        return ()

    def rewritten(self, segment: Segment) -> Segment:
        """Return the next segment as it is answered, before it is sent in a stream."""
        return segment

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return all segments of the recording as they are answered. May raise any `AsrError`."""
        return segments


# Prepares a step before anything is decoded, and raises if the request is wrong. The step begins when the signal is
# known.
BeginStep = Callable[[RecordingSignal, asyncio.TaskGroup], RecordingStep]
PrepareStep = Callable[["RecordingRequest", RunOptions], Awaitable[BeginStep]]
SplitSignal = Callable[["Decoder", "Source", str], Awaitable[RecordingSignal]]  # the last argument is the caller
# Writes a document within a time limit in seconds. Raises `invalid_value` and `DeadlineExceeded`.
WriteDocument = Callable[[Transcript, ResponseFormat, float], Awaitable[Result]]


@dataclass(frozen=True, slots=True)
class PipelineResources:
    """The resources that all recordings share."""

    decoder: Decoder
    engine: EngineClient  # of the default model
    admission: Admission
    timeout_s: float  # after which a recording without progress fails
    look_ahead: int = 16  # spans of one recording that are decoded and queued before the first of them is taken
    others: Mapping[str, EngineClient] = field(default_factory=dict)  # of further models by name
    split_signal: SplitSignal | None = None  # opens a recording and keeps its channels apart; None: they are mixed
    steps: Mapping[str, PrepareStep] = field(default_factory=dict)  # by the attribute of a request that asks for them
    check: ContextCheck = field(default_factory=ContextCheck)  # of answers to audio with a context
    longest_s: float = math.inf  # after which any recording fails
    metrics: RecordingMetrics = field(default_factory=RecordingMetrics)


class RecordingPipeline:
    """Transcribes recordings, many at once. The heavy work is in the decoder's child process and on the engine thread.

    A recording is decoded while it is transcribed, so the memory of its audio does not grow with its length.
    """

    def __init__(self, resources: PipelineResources) -> None:
        self.resources = resources

    async def transcribe(
        self, source: Source, request: RecordingRequest, options: RunOptions, emit: Emit = ignore
    ) -> Transcript:
        """Transcribe a file-like object with a real file descriptor. The transcript is also the last event.

        Raises `InvalidInput` for bad audio, `Overloaded`, `DeadlineExceeded`, `EngineError`s, and
        `incomplete_transcript` if the request is strict.
        Cancelling takes the recording's jobs out of the queue and out of the batch, and ends its decoding.
        """
        limit_s = options.timeout_s
        deadline = Deadline(
            self.resources.engine.clock, limit_s or self.resources.timeout_s, limit_s or self.resources.longest_s
        )
        transcript = await self._transcribe(source, request, options, emit, deadline)
        # In a thread: a long text takes a tenth of a second, and live sessions share the event loop.
        found = await in_thread(paragraphs_of, transcript) if options.paragraphs else ()
        await emit(Finished(transcript, found))
        return transcript

    async def _transcribe(
        self, source: Source, request: RecordingRequest, options: RunOptions, emit: Emit, deadline: Deadline
    ) -> Transcript:
        resources = self.resources
        # Any name that is not another model's means the default model.
        engine = resources.others.get(request.model, resources.engine)
        # A format that cannot report a failed span would silently lack its words, so the failure is an error there.
        may_fail = options.reports_gaps and not request.strict
        words = request.needed_word_times
        if options.keeps_words and words is WordTimes.NONE:
            words = WordTimes.ESTIMATED
        is_bulk = options.priority is Priority.BULK
        with engine.lease(), resources.admission.hold(time_limit_s=deadline.idle_s, bulk=is_bulk) as ticket:
            try:
                # However it ends, the group first cancels what still runs: decoder, queued jobs, rows of the batch.
                async with asyncio.TaskGroup() as group:
                    # Rewritten text is sent span by span, not as it is decoded.
                    deltas = options.deltas and not request.chosen_text_options
                    context = SpanContext(engine, group, request, deadline, deltas, words, resources.check, may_fail)
                    producer = _Producer(resources, ticket, context, options)
                    assembly = _Assembly(emit, producer.on_done, options)
                    await _assembled(producer, assembly, source, deadline)
            except ExceptionGroup as failures:
                # Only the assembly raises, so there is one error. Callers expect it without the group.
                error = failures.exceptions[0]
                raise error from error.__cause__
            resources.admission.progress(ticket, producer.work_s)
        transcript = assembly.transcript(samples_to_ms(producer.progress.decoded_samples), request.spoken_language)
        parts = assembly.answered + damaged(producer.progress, transcript.duration_ms)
        if producer.progress.decoded_s <= BULK_OVER_S:
            coverage = producer.levels.coverage(transcript.duration_ms, parts)
        else:  # it takes 20 ms for two hours, and live sessions share the event loop
            coverage = await in_thread(producer.levels.coverage, transcript.duration_ms, parts)
        coverage = since(coverage, s_to_ms(request.start))
        resources.metrics.count(producer.work_s, coverage, assembly.answered)
        if request.strict:
            check_heard(coverage)
        warnings = [*producer.progress.warnings, *(warning for step in producer.steps for warning in step.warnings)]
        if request.context and not engine.traits.uses_context:
            logger.warning(CONTEXT_IGNORED)
            warnings.append(CONTEXT_IGNORED)
        peaks = producer.levels.peaks() if options.streams else ()
        return replace(transcript, warnings=tuple(warnings), coverage=coverage, peaks=peaks)


async def _assembled(producer: _Producer, assembly: _Assembly, source: Source, deadline: Deadline) -> None:
    """Transcribe the recording to its end. If that fails, a stream still gets the speakers of its segments so far."""
    try:
        async with until(deadline.clock, deadline):
            await producer.begin(source)
            await assembly.run(producer)
            await assembly.finish(producer)
    except Exception as error:
        if producer.streams and producer.tells_speakers and assembly.answered:
            with suppress(Exception):
                async with until(deadline.clock, deadline.clock.now_s() + _LABELS_S):
                    await producer.stop()
                    await assembly.finish(producer)
        if not isinstance(error, TimeoutError):
            raise
        raise DeadlineExceeded(f"{deadline.reason} after {assembly.end_s:.0f} s of the recording.") from None


class _Producer:
    """Decodes and cuts one recording and queues its spans. Runs as a task of the recording's group.

    The channel holds the spans in order, then None, or the error that ended the recording. Its size is the look-ahead:
    while it is full, nothing more is cut or decoded.
    """

    def __init__(
        self, resources: PipelineResources, ticket: AdmissionTicket, context: SpanContext, options: RunOptions
    ) -> None:
        self.progress = Progress()
        self.levels = SoundLevels()
        self.signal = RecordingSignal()
        self.steps: list[RecordingStep] = []
        self._channel: asyncio.Queue[SpanTask | Exception | None] = asyncio.Queue(resources.look_ahead)
        self._resources = resources
        self._ticket = ticket
        self._context = context
        self._options = options
        self._work: asyncio.Task[None] | None = None
        self._is_first = True

    @property
    def tells_speakers(self) -> bool:
        """Return True if the segments are emitted again at the end, with their speakers."""
        return self._context.request.speakers and (self.signal.is_split or bool(self.steps))

    @property
    def work_s(self) -> float:  # seconds of audio to transcribe in the part decoded so far
        return self.signal.work * self.progress.decoded_s

    @property
    def streams(self) -> bool:
        return self._options.streams or self._options.deltas

    async def begin(self, source: Source) -> None:
        """Prepare the steps, and fill the queue in a task."""
        request, options = self._context.request, self._options
        asked = [prepare for option, prepare in self._resources.steps.items() if getattr(request, option)]
        begins = [await prepare(request, options) for prepare in (*asked, *options.steps)]
        self._work = self._context.group.create_task(self._run(source, begins))

    async def stop(self) -> None:
        """Stop decoding, and end the steps."""
        if self._work is not None and not self._work.done():
            self._work.cancel()
            await asyncio.wait([self._work])
        for step in self.steps:
            await step.end()

    async def _run(self, source: Source, begins: Sequence[BeginStep]) -> None:
        try:
            await self._produce(source, begins)
            for step in self.steps:
                await step.end()
            await self._channel.put(None)
        except Exception as error:
            # The error takes its place in the channel, so that the speech before it is answered first.
            await self._channel.put(error)

    def on_done(self, done_s: float) -> None:
        """Note that the recording is answered up to `done_s`."""
        self._context.deadline.progress()
        self._resources.admission.progress(self._ticket, self.signal.work * done_s)

    async def next(self) -> SpanTask | None:
        """Return the next span, or None at the end. Raises the error that ended the recording."""
        item = await self._channel.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def _produce(self, source: Source, begins: Sequence[BeginStep]) -> None:
        request, decoder, progress = self._context.request, self._resources.decoder, self.progress
        if request.channel_mode is ChannelMode.SPLIT and (split_signal := self._resources.split_signal) is not None:
            self.signal = await split_signal(decoder, source, self._options.caller)
        signal = self.signal
        self.steps = [begin(signal, self._context.group) for begin in begins]
        config = segmentation_config(request.chunking_strategy, self._context.engine.traits)
        segmenter = signal.segmenter(config, self.levels, request.vad)
        admission, block = self._resources.admission, np.zeros(0, np.float32)
        async with aclosing(signal.stream(decoder, source, progress, self._options.caller)) as blocks:
            async for block in blocks:
                self._context.deadline.progress()
                length_s = signal.work * max(progress.claimed_s, progress.decoded_s)
                admission.measure(self._ticket, length_s, bulk=length_s > BULK_OVER_S)
                for step in self.steps:
                    await step.push(block)
                # A short file has one block: it is cut in one call on another thread.
                for span in await asyncio.to_thread(segmenter.push, block, is_last=progress.is_complete):
                    await self._begin(span, length_s)
        if not progress.is_complete:
            admission.measure(self._ticket, self.work_s, bulk=self.work_s > BULK_OVER_S)
            for span in await asyncio.to_thread(segmenter.push, block[..., :0], is_last=True):
                await self._begin(span, self.work_s)

    async def _begin(self, span: SpeechSpan, length_s: float) -> None:
        options, is_long = self._options, length_s > BULK_OVER_S
        for step in self.steps:
            step.hear(span)
        if samples_to_s(span.start) < self._context.request.start:
            return
        is_bulk = is_long and options.priority is Priority.INTERACTIVE
        task = SpanTask(self._context, span, Priority.BULK if is_bulk else options.priority)
        is_first, self._is_first = self._is_first, False
        await self._channel.put(task)
        if is_first and (self._context.deltas or (options.streams and is_long)):
            # The spans after it would multiply the time to the first word, so they wait for it.
            await task.begun.wait()


class _Assembly:
    """The consumer of the channel: takes the spans of one recording in order, emits their events and joins them.

    Unless events are streamed, the first segments wait for more speech, which shows the language of a greeting.
    `on_done` is called with the seconds up to which the recording is answered.
    """

    def __init__(self, emit: Emit, on_done: Callable[[float], None], options: RunOptions) -> None:
        self._created_s = time.monotonic()
        self._emit = emit
        self._on_done = on_done
        self._deltas, self._waits = options.deltas, not (options.deltas or options.streams)
        self._text = ""
        # Results whose language is not decided yet: together not much longer than `LONGEST_S` plus a span.
        self._waiting: list[tuple[SpanTask, SpanResult]] = []
        self._decided: deque[SpanResult] = deque(maxlen=REACH)  # the last decided results with text
        self.answered: list[Segment] = []  # of all spans, in the order of the recording, also without text
        self._segments: Sequence[Segment] = ()  # with text, as the steps have changed them
        self._timings = Timings()
        self._failure: Exception | None = None  # of the last span that was left out

    @property
    def end_s(self) -> float:
        return max((segment.end_ms / 1000 for segment in self.answered), default=0.0)

    async def run(self, producer: _Producer) -> None:
        """Process all spans in the channel. Raises the error that ended the recording or a span after the spans before
        it, or the error of the last span if all were left out."""
        task = await producer.next()
        self._timings = Timings(decode_ms=1000 * (time.monotonic() - self._created_s))
        await self._emit(Started(producer.progress.claimed_s))
        while task is not None:
            await self._add(task, producer.steps)
            task = await producer.next()
        await self._decide(producer.steps, is_sent=False)
        if self._failure and all(segment.cut_short is UnheardReason.FAILED for segment in self.answered):
            raise self._failure

    async def finish(self, producer: _Producer) -> None:
        """Let the steps change the segments, and emit these again if they have speakers. Raises the errors of steps."""
        spoken = (segment for segment in self.answered if segment.text)
        # If the signal is split, the second half of a span may begin after the next span does.
        segments: Sequence[Segment] = sorted(spoken, key=lambda segment: segment.start_ms)
        for step in producer.steps:
            segments = await step.mapped(segments)
        self._segments = segments
        if producer.tells_speakers:
            for segment in self._segments:
                await self._emit(SegmentLabelled(segment))

    def transcript(self, duration_ms: int, asked_language: str | None) -> Transcript:
        """Return all segments as one transcript. Without speech, the language is the request's."""
        spoken = tuple(segment for segment in self._segments if segment.text)
        return Transcript(
            text=self._text if self._deltas else scripts.join(segment.text for segment in spoken),
            language=main_language(spoken) or asked_language or "",
            duration_ms=duration_ms,
            segments=spoken,
            timings=self._timings,
        )

    async def _add(self, task: SpanTask, steps: Sequence[RecordingStep]) -> None:
        is_sent = False
        # Sent text is final, so text that may be transcribed again is sent when its language is decided. The first span
        # is sent at once: there is no speech before it to decide by, and somebody waits for it.
        sends = self._deltas and not (self._decided and task.may_be_outlier)
        while sends and (text := await task.next_delta()) is not None:
            await self._add_text(text, opens=not is_sent)
            is_sent = True
        self._waiting += [(task, result) for result in await task.results()]
        self._failure = task.failure or self._failure
        waiting_s = sum(result.heard.seconds for _, result in self._waiting)
        if not self._waits or self.answered or waiting_s > LONGEST_S:
            await self._decide(steps, is_sent=is_sent)

    async def _decide(self, steps: Sequence[RecordingStep], *, is_sent: bool) -> None:
        """Decide on the language of the waiting results, unless their text was sent, and add the results."""
        for number, (task, result) in enumerate(self._waiting, 1):
            if not is_sent:
                later = [one for _, one in self._waiting[number:]]
                result = await task.weighed(result, [*self._decided, *later])
            for step in steps:
                result = replace(result, segment=step.rewritten(result.segment))
            if self._deltas and not is_sent and result.segment.text:
                await self._add_text(result.segment.text, opens=True)
            if result.segment.text:
                self._decided.append(result)
            self.answered.append(result.segment)
            answer = result.answer
            self._timings = self._timings.with_span(answer.queue_s, answer.infer_s, answer.load_s)
            self._on_done(result.segment.end_ms / 1000)
            await self._emit(SegmentDone(result.segment))
        self._waiting.clear()

    async def _add_text(self, text: str, *, opens: bool) -> None:
        """Emit a piece of text. `opens`: it is the first piece of a segment."""
        delta = scripts.joint(self._text, text) + text if opens else text
        self._text += delta
        await self._emit(TextDelta(delta))


class TranscriptTranslator:
    """Makes the answers to translation requests. This base class refuses them."""

    def check(self) -> None:
        """Raise `TranslationUnavailable` if nothing can be translated. Called before a body is read."""
        raise TranslationUnavailable("This server does not translate.")

    async def answer(self, transcript: Transcript, request: TranslationRequest, limit_s: float) -> Result:
        """Return the answer within `limit_s`. Raises `TranslationUnavailable` and `translation_failed`."""
        raise TranslationUnavailable("This server does not translate.")


async def refuse_document(transcript: Transcript, response_format: ResponseFormat, limit_s: float) -> Result:
    raise InvalidInput("This server does not write documents.", code="unsupported_value", param="response_format")


class RequestProcessor:
    """Transcribes a recording, then renders, writes or translates the transcript as the request says."""

    def __init__(
        self,
        pipeline: RecordingPipeline,
        translator: TranscriptTranslator,
        write_document: WriteDocument = refuse_document,
    ) -> None:
        self._pipeline = pipeline
        self.translator = translator
        self._write_document = write_document

    async def process(
        self, source: Source, request: Request, options: RunOptions, emit: Emit = ignore
    ) -> tuple[Result, Transcript]:
        """Return the answer, and the transcript that it was made from. `emit` gets the events of the transcription.

        A time limit in `options` covers all work. Otherwise the server's limit is for the answer after the transcript.
        Raises what the pipeline, the translator and `write_document` raise; cancelling cancels all work.
        """
        resources = self._pipeline.resources
        clock, left_s = resources.engine.clock, resources.timeout_s
        began_s = clock.now_s()
        transcript = await self._pipeline.transcribe(source, request, options, emit)
        if options.timeout_s is not None:
            left_s = max(0.0, began_s + options.timeout_s - clock.now_s())
        return await self.answer(transcript, request, left_s), transcript

    async def answer(self, transcript: Transcript, request: Request, limit_s: float) -> Result:
        """Return the answer that the request asks for. Raises what the translator and `write_document` raise."""
        if request.needed_word_times is WordTimes.NONE:  # words that the transcript kept would change paragraphs
            without = (replace(segment, words=()) for segment in transcript.segments)
            transcript = replace(transcript, segments=tuple(without))
        if isinstance(request, TranslationRequest):
            return await self.translator.answer(transcript, request, limit_s)
        if request.response_format.is_document:
            return await self._write_document(transcript, request.response_format, limit_s)
        has_cues = "cue" in request.listed or request.response_format.is_subtitles
        if not has_cues and len(transcript.text) <= _SHORT_CHARS:
            return render(transcript, request)
        # In a thread: the cues of two hours take a second to compute, and live sessions share the event loop.
        result = await in_thread(render, transcript, request)
        if isinstance(request, SubtitleRequest):
            name = f"subtitles.{request.response_format.value}"
            return replace(result, file_name=name, time_source=time_source(transcript.segments))
        return result
