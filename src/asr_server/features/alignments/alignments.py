"""Times for the words of a recording's text: transcribe, match the text with the transcript, align span by span.

The transcript shows which part of the text belongs to which span of speech, so that a recording of hours is aligned in
bounded memory. To align the spans, the recording is decoded a second time: its file exists until the answer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from asr_server.audio.decode import Progress
from asr_server.core.audio import samples_to_ms, samples_to_s
from asr_server.core.errors import InvalidInput
from asr_server.core.transcript import TimeSource, Transcript, Word
from asr_server.features.alignments.matching import Match, SpanText, divided, joined, left_out, match, said
from asr_server.features.alignments.requests import AlignedWord, AlignmentRequest
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.pipeline import BULK_OVER_S, RecordingPipeline, RecordingStep, RunOptions
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.span import time_words
from asr_server.schedule.job import DEFAULT, Priority
from asr_server.subtitle.alignment import letters, timed_letters
from asr_server.text import scripts

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source
    from asr_server.audio.segmentation import SpeechSpan
    from asr_server.core.transcript import Segment
    from asr_server.engine.client import EngineClient
    from asr_server.recordings.pipeline import BeginStep
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import RecordingSignal

# Most spans of one recording that are cut and wait for the aligner, each of at most 2 MB.
_AT_ONCE = 8
# Limits of a text: characters per second of the recording, twice the rate of the fastest speakers, and an allowance.
_MOST_PER_S, _MOST_MORE = 40, 1_000
# The most UTF-8 bytes of a span's text for the aligner, whose memory grows with the text: more than a span can hold in
# any script. Only a text with very long words, or with thousands of combining marks, has more.
_MOST_BYTES_PER_S, _MOST_MORE_BYTES = 100, 500


def check_length(text: str, duration_s: float) -> None:
    """Raise `string_above_max_length` if nobody can say the text in that time."""
    most = _MOST_MORE + round(_MOST_PER_S * duration_s)
    if len(text) > most:
        raise InvalidInput(
            f"The text is too long for this recording, which may have {most} characters.",
            code="string_above_max_length",
            param="text",
        )


@dataclass(frozen=True, slots=True)
class AlignedText:
    """The text with its times, and the transcript in which its words were found."""

    lines: Sequence[tuple[str, Sequence[AlignedWord]]]  # without lines that have neither letters nor digits
    transcript: Transcript

    @property
    def words(self) -> list[AlignedWord]:
        return [word for _, words in self.lines for word in words]


@dataclass(frozen=True, slots=True)
class Alignments:
    """Aligns the texts of recordings."""

    decoder: Decoder
    engines: Mapping[str, EngineClient]  # by the names of their models, with the default's

    async def align(
        self, pipeline: RecordingPipeline, source: Source, request: AlignmentRequest, options: RunOptions
    ) -> AlignedText:
        """Return the text with the times of its words, which never decrease. Raises as `RecordingPipeline.transcribe`.
        Cancelling cancels all work."""
        engine = self.engines.get(request.model, self.engines[DEFAULT])
        step = _AlignmentStep(request.text, engine, self.decoder, source, options)
        transcript = await pipeline.transcribe(source, request, replace(options, steps=[step.prepare]))
        return AlignedText(step.lines, transcript)


class _AlignmentStep(RecordingStep):
    """The alignment of one recording: a step of its transcription, under the same deadline and admission."""

    def __init__(self, text: str, engine: EngineClient, decoder: Decoder, source: Source, options: RunOptions) -> None:
        self.lines: list[tuple[str, list[AlignedWord]]] = []
        self._text, self._engine, self._decoder, self._source, self._options = text, engine, decoder, source, options
        self._samples = 0
        self._spans: list[SpeechSpan] = []  # without their audio
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def prepare(self, request: RecordingRequest, options: RunOptions) -> BeginStep:
        return self._begin

    def _begin(self, signal: RecordingSignal, group: asyncio.TaskGroup) -> RecordingStep:
        self._signal, self._group = signal, group
        return self

    async def push(self, block: Samples) -> None:
        self._samples += block.shape[-1]

    def hear(self, span: SpeechSpan) -> None:
        self._spans.append(replace(span, audio=np.zeros(0, np.float32)))

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Align the given words with the segments, and return the segments unchanged."""
        check_length(self._text, samples_to_s(self._samples))
        spoken = _by_span(segments, self._spans)
        # In a thread: a book takes a second, and live sessions share the event loop.
        lines, found = await in_thread(_matched, self._text, spoken)
        given = [word for _, words in lines for word in words]
        unheard, tasks = left_out(len(given), found.texts), []
        async with aclosing(self._cut(list(found.texts))) as spans:
            async for number, span in spans:
                await self._room.acquire()
                language, added = spoken[number][0].language, unheard.get(number, ())
                # The recording's group cancels the other tasks if one fails.
                tasks.append(self._group.create_task(self._placed(span, language, found.texts[number], given, added)))
        # If both of two neighbouring spans have sound for the words between them, the earlier span gets the words.
        times = {n: word for task in reversed(tasks) for n, word in (await task).items()}
        words = iter([AlignedWord(word, found.scores[n], times.get(n)) for n, word in enumerate(given)])
        self.lines = [(line, list(islice(words, len(own)))) for line, own in lines]
        return segments

    async def _placed(
        self, span: SpeechSpan, language: str, text: SpanText, given: Sequence[str], added: Sequence[range]
    ) -> dict[int, Word]:
        """Return the words of a span with their times, by number. `added`: the neighbouring runs of words that were not
        heard; the runs that were said anyway are kept."""
        try:
            speech = [(samples_to_ms(a), samples_to_ms(b)) for a, b in span.speech_regions or ((span.start, span.end),)]
            times = await self._timed(joined(text, given, added), span, language)
            kept = said(added, times, given, speech, language)
            # In the first alignment, words that were not said took time from their neighbours.
            return times if kept == list(added) else await self._timed(joined(text, given, kept), span, language)
        finally:
            self._room.release()

    async def _cut(self, numbers: Sequence[int]) -> AsyncGenerator[tuple[int, SpeechSpan], None]:
        """Yield these spans in order with their audio. The recording is decoded again, only as far as it is needed."""
        waiting = deque((number, self._spans[number]) for number in numbers)
        kept, kept_from = np.zeros(0, np.float32), 0
        if not waiting:
            return
        stream = self._signal.stream(self._decoder, self._source, Progress(), self._options.caller)
        async with aclosing(stream) as blocks:
            async for block in blocks:
                kept = np.concatenate((kept, block))
                while waiting and waiting[0][1].end <= kept_from + len(kept):
                    number, span = waiting.popleft()
                    audio = kept[span.start - kept_from : span.end - kept_from]
                    # In [-1, 1], like the samples that were transcribed.
                    yield number, replace(span, audio=audio / max(np.float32(1), np.abs(audio).max(initial=0)))
                if not waiting:
                    return
                needed = min(max(0, waiting[0][1].start - kept_from), len(kept))
                kept, kept_from = kept[needed:], kept_from + needed

    async def _timed(self, text: SpanText, span: SpeechSpan, language: str) -> dict[int, Word]:
        """Align a text with the span and return its given words by number. The aligner may divide the text into other
        words."""
        is_bulk = samples_to_ms(self._spans[-1].end) > 1000 * BULK_OVER_S
        priority = Priority.BULK if is_bulk else self._options.priority
        written = scripts.join(word for word, _ in text)
        most_bytes = _MOST_MORE_BYTES + _MOST_BYTES_PER_S * samples_to_s(span.end - span.start)
        how = WordTimes.ALIGNED if len(written.encode()) <= most_bytes else WordTimes.ESTIMATED
        timed = await time_words(self._engine, span, written, language, how, priority=priority)
        parts = ((one, word.source) for word in timed for one in timed_letters((word.text, word.start_ms, word.end_ms)))
        found = {}
        for word, number in text:
            own = list(islice(parts, len(letters(word))))
            if number is not None and own:
                estimated = any(source is TimeSource.ESTIMATED for _, source in own)
                source = TimeSource.ESTIMATED if estimated else TimeSource.ALIGNED
                found[number] = Word(word, own[0][0][1][0], own[-1][0][1][1], source)
        return found


def _matched(text: str, spoken: Mapping[int, Sequence[Segment]]) -> tuple[list[tuple[str, list[str]]], Match]:
    """Return the lines of the text that have words, each with its words, and the match of all words with the segments
    of each span."""
    lines = [(line.strip(), words) for line in text.splitlines() if (words := divided(line))]
    given = [word for _, words in lines for word in words]
    texts = {number: scripts.join(segment.text for segment in own) for number, own in spoken.items()}
    return lines, match(given, [(word, number) for number, text in texts.items() for word in divided(text)])


def _by_span(segments: Sequence[Segment], spans: Sequence[SpeechSpan]) -> dict[int, list[Segment]]:
    """Return the segments of each span that has any, by the numbers of the spans. A span may have two: its halves."""
    starts_ms = [samples_to_ms(span.start) for span in spans]
    found: dict[int, list[Segment]] = {}
    for segment in segments:
        found.setdefault(max(0, bisect_right(starts_ms, segment.start_ms) - 1), []).append(segment)
    return found
