"""A recording and its text to words with times: transcribe, match the text with what was heard, align span by span.

What is heard tells which part of the text belongs to which span of speech, so that a recording of hours is aligned in
bounded memory. The recording is decoded a second time for that: its file is there until the answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from asr_server.audio.decode import Progress
from asr_server.core.audio import samples_to_ms, samples_to_s
from asr_server.core.errors import TextTooLong
from asr_server.core.transcript import TimeSource, Transcript
from asr_server.features.alignments.matching import HeardWord, Match, SpanText, divided, joined, left_out, match, said
from asr_server.features.alignments.requests import AlignedWord, AlignmentRequest, WordTime
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.pipeline import BULK_OVER_S, RecordingPipeline, RecordingStep, RunOptions
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.span import time_words
from asr_server.schedule.job import DEFAULT, Priority
from asr_server.subtitle.alignment import letters, timed_letters
from asr_server.text import scripts

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source
    from asr_server.core.transcript import Segment, Word
    from asr_server.engine.client import EngineClient
    from asr_server.recordings.pipeline import BeginStep
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import RecordingSignal, SpeechSpan

# Spans of one recording that are cut and wait for the aligner, each of at most 2 MB.
_AT_ONCE = 8
# Limits of a text: characters per second of the recording, twice the rate of the fastest speakers, and an allowance.
_MOST_PER_S, _MOST_MORE = 40, 1_000


def check_length(text: str, duration_s: float) -> None:
    """Raise `TextTooLong` if nobody can say the text in that time."""
    most = _MOST_MORE + round(_MOST_PER_S * duration_s)
    if len(text) > most:
        raise TextTooLong(f"The text is too long for this recording, which may have {most} characters.", param="text")


@dataclass(frozen=True, slots=True)
class AlignedLine:
    """A line of the given text. Lines without letters and digits are left out."""

    text: str
    words: tuple[AlignedWord, ...]


@dataclass(frozen=True, slots=True)
class AlignedText:
    """All lines, and the transcript by which the words were found."""

    lines: tuple[AlignedLine, ...]
    transcript: Transcript

    @property
    def words(self) -> list[AlignedWord]:
        return [word for line in self.lines for word in line.words]


class Alignments:
    """Aligns the texts of recordings. `engines`: the clients of the models by their names, with the default's."""

    def __init__(self, decoder: Decoder, engines: Mapping[str, EngineClient]) -> None:
        self._decoder = decoder
        self._engines = engines

    async def align(
        self, pipeline: RecordingPipeline, source: Source, request: AlignmentRequest, options: RunOptions
    ) -> AlignedText:
        """Return the text with the times of its words, which do not fall. Raises as `RecordingPipeline.transcribe`.
        Cancelling cancels all work."""
        engine = self._engines.get(request.model, self._engines[DEFAULT])
        step = _AlignmentStep(request.text, engine, self._decoder, source, options)
        transcript = await pipeline.transcribe(source, request, replace(options, steps=[step.prepare]))
        found = iter(step.aligned)
        return AlignedText(
            tuple(AlignedLine(line, tuple(next(found) for _ in words)) for line, words in step.lines), transcript
        )


class _AlignmentStep(RecordingStep):
    """The alignment of one recording, a step of its transcription: under its deadline and its place among others."""

    def __init__(self, text: str, engine: EngineClient, decoder: Decoder, source: Source, options: RunOptions) -> None:
        self.lines: list[tuple[str, list[str]]] = []
        self.aligned: list[AlignedWord] = []
        self._text, self._engine, self._decoder, self._source, self._options = text, engine, decoder, source, options
        self._samples = 0
        self._spans: list[SpeechSpan] = []  # without their audio
        self._times: dict[int, WordTime] = {}  # by the numbers of the given words
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def prepare(self, request: RecordingRequest, options: RunOptions) -> BeginStep:
        """Return how the step begins."""
        return self._begin

    def _begin(self, signal: RecordingSignal, group: asyncio.TaskGroup) -> RecordingStep:
        self._signal, self._group = signal, group
        return self

    async def push(self, block: Samples) -> None:
        """Count the samples."""
        self._samples += block.shape[-1]

    def hear(self, span: SpeechSpan) -> None:
        """Remember where the span is."""
        self._spans.append(replace(span, audio=np.zeros(0, np.float32)))

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Align the given words with the segments, which stay as they are."""
        check_length(self._text, samples_to_s(self._samples))
        self._spoken = _by_span(segments, self._spans)
        # In a thread: a book takes a second, and live sessions share the event loop.
        self.lines, found = await in_thread(_matched, self._text, self._spoken)
        self._given = [word for _, words in self.lines for word in words]
        self._unheard = left_out(len(self._given), found.texts)
        task: asyncio.Task[None] | None = None
        tasks = []
        async with aclosing(self._cut(found.texts)) as spans:
            async for text, span in spans:
                await self._room.acquire()
                # The group of the recording ends the others where one fails.
                task = self._group.create_task(self._place(text, span, task))
                tasks.append(task)
        await asyncio.gather(*tasks)
        self.aligned = [
            AlignedWord(word, score, self._times.get(number))
            for number, (word, score) in enumerate(zip(self._given, found.scores, strict=True))
        ]
        return segments

    async def _place(self, text: SpanText, span: SpeechSpan, before: asyncio.Task[None] | None) -> None:
        """Find the times of the given words of a span. `before`: does the same for the span before it."""
        try:
            if before is not None and text.span in self._unheard:
                await before  # words between two spans may be placed in that
            for number, time in await self._said(text, span):
                self._times[number] = time
        finally:
            self._room.release()

    async def _said(self, text: SpanText, span: SpeechSpan) -> list[tuple[int, WordTime]]:
        """Return the times of the given words of a span, and of those next to them that were not heard but said."""
        language = self._spoken[text.span][0].language
        speech = [(samples_to_ms(a), samples_to_ms(b)) for a, b in span.speech_regions or ((span.start, span.end),)]
        left = [run for run in self._unheard.get(text.span, ()) if run.start not in self._times]
        times = await self._timed(joined(text, self._given, left), span, language)
        kept = said(left, {n: (time.start_ms, time.end_ms) for n, time in times}, self._given, speech, language)
        # Words that were not said have taken time from their neighbours.
        return times if kept == left else await self._timed(joined(text, self._given, kept), span, language)

    async def _cut(self, texts: Sequence[SpanText]) -> AsyncGenerator[tuple[SpanText, SpeechSpan], None]:
        """Yield the texts in order, each with its span, while the recording is decoded again as far as it is needed."""
        waiting = deque((text, self._spans[text.span]) for text in texts)
        kept, kept_from = np.zeros(0, np.float32), 0
        if not waiting:
            return
        stream = self._signal.stream(self._decoder, self._source, Progress(), self._options.caller)
        async with aclosing(stream) as blocks:
            async for block in blocks:
                kept = np.concatenate((kept, block))
                while waiting and waiting[0][1].end <= kept_from + len(kept):
                    text, span = waiting.popleft()
                    yield text, replace(span, audio=_scaled(kept[span.start - kept_from : span.end - kept_from]))
                if not waiting:
                    return
                needed = min(max(0, waiting[0][1].start - kept_from), len(kept))
                kept, kept_from = kept[needed:], kept_from + needed

    async def _timed(self, text: SpanText, span: SpeechSpan, language: str) -> list[tuple[int, WordTime]]:
        """Return the number and the time of each given word of a text that is aligned with the span."""
        is_bulk = samples_to_ms(self._spans[-1].end) > 1000 * BULK_OVER_S
        priority = Priority.BULK if is_bulk else self._options.priority
        written = scripts.join(word for word, _ in text.words)
        timed = await time_words(self._engine, span, written, language, WordTimes.ALIGNED, priority=priority)
        return list(_given_times(text, timed))


def _divided_lines(text: str) -> list[tuple[str, list[str]]]:
    """Return the lines that have words, and these."""
    lines = ((line.strip(), divided(line)) for line in text.splitlines())
    return [(line, words) for line, words in lines if words]


def _matched(text: str, spoken: Mapping[int, Sequence[Segment]]) -> tuple[list[tuple[str, list[str]]], Match]:
    """Return the lines of the text with their words, and the match of all words with the segments of each span."""
    lines = _divided_lines(text)
    given = [word for _, words in lines for word in words]
    texts = {number: scripts.join(segment.text for segment in own) for number, own in spoken.items()}
    return lines, match(given, [HeardWord(word, number) for number, text in texts.items() for word in divided(text)])


def _by_span(segments: Sequence[Segment], spans: Sequence[SpeechSpan]) -> dict[int, list[Segment]]:
    """Return the segments of each span that has any, by the numbers of the spans. A span may have two: its halves."""
    found: dict[int, list[Segment]] = {}
    number = 0
    for segment in segments:
        while number + 1 < len(spans) and segment.start_ms >= samples_to_ms(spans[number + 1].start):
            number += 1
        found.setdefault(number, []).append(segment)
    return found


def _scaled(audio: Samples) -> Samples:
    """Return the samples of a span in [-1, 1], as those were that were transcribed."""
    peak = float(np.abs(audio).max(initial=1.0))
    scaled: Samples = np.clip(audio / np.float32(peak), -1.0, 1.0)
    return scaled


def _given_times(text: SpanText, timed: Sequence[Word]) -> Iterator[tuple[int, WordTime]]:
    """Yield the number and the time of each given word of a text, which may have been divided in another way to be
    timed."""
    found = [
        (time, word.source) for word in timed for _, time in timed_letters((word.text, word.start_ms, word.end_ms))
    ]
    at = 0
    for word, number in text.words:
        own = found[at : at + len(letters(word))]
        at += len(letters(word))
        if number is not None and own:
            sources = {source for _, source in own}
            source = TimeSource.ESTIMATED if TimeSource.ESTIMATED in sources else TimeSource.ALIGNED
            yield number, WordTime(own[0][0][0], own[-1][0][1], source)
