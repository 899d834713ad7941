"""One span of a recording: transcribed as a row of the batch, tried again where that went wrong, its words timed.

A second try is the same for live finals. An answer that repeats itself, or that used up its token budget, is asked for
again in an easier form: greedily if it was sampled, then in two halves. What still fails is returned as it is: its
`finish` says so.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from loguru import logger

from asr_server.audio.segmentation import quietest_middle
from asr_server.core.audio import SAMPLE_RATE, samples_to_ms, samples_to_s
from asr_server.core.errors import DeadlineExceeded, EngineError, InvalidInput
from asr_server.core.transcript import RepairReason, Segment, Token, UnheardReason, Word
from asr_server.engine.protocol import AlignItem, Finish, Utterance
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.spoken_language import LONGEST_S, Heard, rival
from asr_server.subtitle import alignment

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient, Transcription
    from asr_server.engine.protocol import Hypothesis
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import SpeechSpan
    from asr_server.schedule.job import Priority


# What a doubtful span must have to be taken for words. It is sound without a pause: for music, models write a short
# sentence with some confidence, which would be slower than anybody speaks.
_LEAST_LOGPROB = math.log(0.5)  # the mean of its tokens, which are as likely as not
_LEAST_TOKENS_PER_S = 100 / 60  # slow speech has 100 words a minute, and a word a token at least


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The common context of the spans of one recording."""

    engine: EngineClient
    group: asyncio.TaskGroup
    request: RecordingRequest
    deadline_s: float  # by the engine's request clock
    deltas: bool  # the text is wanted as it is decoded


@dataclass(frozen=True, slots=True)
class SpanResult:
    """The segment of a span, or of half of one, and the engine's answer that it was made of."""

    segment: Segment
    answer: Transcription

    @property
    def heard(self) -> Heard:
        """Return what tells the language of other segments."""
        return Heard(self.segment.start_ms / 1000, self.segment.end_ms / 1000, self.answer.hypothesis)


class SpanTask:
    """A span at work in the recording's task group. The job is queued at once.

    Text that was taken out of `deltas` is final. A span is therefore not tried again once any of its text was taken,
    and gives no more deltas once it is tried again.
    """

    def __init__(self, context: SpanContext, span: SpeechSpan, priority: Priority) -> None:
        self._context = context
        self._span = span
        self._priority = priority
        request = context.request
        self._utterance = Utterance(
            audio=span.audio,
            language=request.language,
            languages=request.languages,
            context=request.context,
            temperature=request.temperature,
            stream=context.deltas and not span.is_doubtful,  # what is sent cannot be dropped
        )
        stream = context.engine.stream(self._utterance, priority=priority, deadline_s=context.deadline_s)
        self._stream = stream
        self.begun = stream.begun  # set with the first text, or at the end of the job
        self._taken = False
        self._stopped: UnheardReason | None = None  # why the first answer was stopped, if it is asked for again
        self._task = context.group.create_task(self._run())
        # A task that is cancelled before its first step never awaits the stream: the job would stay in the queue.
        self._task.add_done_callback(lambda _: stream.cancel())

    async def next_delta(self) -> str | None:
        """The next text as it is decoded; None at its end, or when the span is tried again.

        Raises `TimeoutError` at the deadline.
        """
        text = await anext(self._stream, None)
        if text is None or self._stopped:
            return None
        self._taken = True
        return text

    async def results(self) -> list[SpanResult]:
        """One result, or two for halves. Raises what the engine raised."""
        found = await self._task
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def may_be_outlier(self) -> bool:
        """True if the speech around it may change the language that is found for it."""
        traits = self._context.engine.traits
        detects = self._context.request.language is None and traits.scores and len(traits.languages) > 1
        return detects and samples_to_s(len(self._span.audio)) <= LONGEST_S

    async def weighed(self, result: SpanResult, others: Iterable[SpanResult]) -> SpanResult:
        """Return the likelier of `result` and a result for the same audio in the language of the other results of its
        speaker. The audio is heard again only if it might be in that.

        Raises what the engine raises.
        """
        answer, speaker = result.answer, result.segment.speaker
        other = rival(result.heard, (one.heard for one in others if one.segment.speaker == speaker))
        if other is None:
            return result
        # The language is limited to one, and not forced, so that the model says how probable it finds it.
        utterance = replace(_greedy(self._utterance, answer.start, answer.end), languages=(other.language,))
        found = await self._context.engine.transcribe(
            utterance, priority=self._priority, deadline_s=self._context.deadline_s
        )
        if not other.is_likelier(found.hypothesis, answer.hypothesis):
            return result
        second = await self._result(replace(found, start=answer.start, end=answer.end))
        if not second.segment.text:  # it has too little support, which the first one has
            return result
        return replace(second, segment=replace(second.segment, repaired=RepairReason.LANGUAGE))

    async def _run(self) -> list[SpanResult] | Exception:
        try:
            answers = await self._answers()
            if len(answers) == 1:  # nearly always: no tasks are needed
                return [await self._result(answers[0])]
            return list(await asyncio.gather(*map(self._result, answers)))
        except Exception as error:
            # Raised, it would end the whole group. It waits for its turn instead: what was said before is sent first.
            return error

    async def _answers(self) -> list[Transcription]:
        first = await self._stream.result()
        if self._taken:
            return [first]
        self._stopped = _stopped(first)
        ask = partial(self._context.engine.transcribe, priority=self._priority, deadline_s=self._context.deadline_s)
        return await retry(self._utterance, first, ask)

    async def _result(self, answer: Transcription) -> SpanResult:
        offset, hypothesis = self._span.start, answer.hypothesis
        if self._span.is_doubtful and not _has_support(hypothesis, answer.end - answer.start):
            hypothesis = replace(hypothesis, text="")
            answer = replace(answer, hypothesis=hypothesis)
        part = self._span.part(offset + answer.start, offset + answer.end)
        how = self._context.request.needed_word_times
        words = await time_words(
            self._context.engine, part, hypothesis.text, hypothesis.language, how, priority=self._priority
        )
        spoken = rated(words, hypothesis)
        if part.speaker is not None:
            spoken = tuple(replace(word, speaker=part.speaker) for word in spoken)
        return SpanResult(_segment(part, answer, spoken, self._stopped), answer)


def _has_support(hypothesis: Hypothesis, samples: int) -> bool:
    """Return True if the words are likely enough for so many samples of sound that may be no speech."""
    spoken = len(hypothesis.ids) - hypothesis.pieces.count(b"")
    return (
        hypothesis.mean_logprob >= _LEAST_LOGPROB
        and spoken >= _LEAST_TOKENS_PER_S * samples_to_s(samples)
        and any(map(str.isalnum, hypothesis.text))
    )


def _stopped(answer: Transcription) -> UnheardReason | None:
    finish = answer.hypothesis.finish
    return None if finish is Finish.END else UnheardReason(finish)


def _segment(
    span: SpeechSpan, answer: Transcription, words: tuple[Word, ...], first_stopped: UnheardReason | None
) -> Segment:
    hypothesis, cut_short = answer.hypothesis, _stopped(answer)
    silence = hypothesis.no_speech_prob
    return Segment(
        start_ms=samples_to_ms(span.start),
        end_ms=samples_to_ms(span.end),
        text=hypothesis.text,
        language=hypothesis.language,
        tokens=hypothesis.ids,
        mean_logprob=hypothesis.mean_logprob,
        no_speech_prob=silence if silence is not None else 1.0 - span.peak_probability,
        temperature=answer.temperature,
        words=words,
        cut_short=cut_short,
        repaired=RepairReason(first_stopped) if first_stopped and not cut_short else None,
        spoken=tuple(
            Token(written, logprob)
            for written, logprob in zip(hypothesis.pieces, hypothesis.logprobs, strict=False)
            if written
        ),
        prompt_tokens=hypothesis.prompt_tokens,
        audio_tokens=hypothesis.audio_tokens,
        speaker=span.speaker,
    )


def rated(words: Sequence[Word], hypothesis: Hypothesis) -> tuple[Word, ...]:
    """Return the words of the hypothesis' text, in order, each with the geometric mean of its tokens' probabilities.

    A token that writes parts of two words counts for both. All words stay as they are if the tokens do not map to the
    text.
    """
    tokens = [
        (end, logprob)
        for end, logprob, piece in zip(hypothesis.offsets, hypothesis.logprobs, hypothesis.pieces, strict=False)
        if piece  # the others name the language
    ]
    starts = [0, *(end for end, _ in tokens[:-1])]
    # A token that ends inside a character counts for that character.
    ends = [max(end, start + 1) for start, (end, _) in zip(starts, tokens, strict=False)]
    rated_words, at = [], 0
    for word in words:
        start = hypothesis.text.find(word.text, at)
        if start < 0:
            rated_words.append(word)
            continue
        at = start + len(word.text)
        own = [logprob for _, logprob in tokens[bisect_right(ends, start) : bisect_left(starts, at)]]
        if own:
            word = replace(word, confidence=round(min(1.0, math.exp(sum(own) / len(own))), 4))
        rated_words.append(word)
    return tuple(rated_words)


# In half of a shorter utterance, a word lost at the cut is more likely than a mended loop.
_MIN_SPLIT_SAMPLES = 2 * SAMPLE_RATE

# Transcribes an utterance: `EngineClient.transcribe` with its other arguments bound.
Ask = Callable[[Utterance], Awaitable["Transcription"]]


async def retry(utterance: Utterance, first: Transcription, ask: Ask) -> list[Transcription]:
    """The answers for `utterance`, whose first answer was `first`: one, or two for its halves, in order.

    Raises what `ask` raises. Cancelling cancels what was asked. Of the utterance only audio, languages and context are
    used again: a draft or a forced beginning belong to the answer that went wrong, and nobody knows in which half they
    end.
    """
    samples = len(utterance.audio)
    answer = first
    if answer.hypothesis.finish is not Finish.END and utterance.temperature > 0:
        answer = await ask(_greedy(utterance, 0, samples))
    if answer.hypothesis.finish is Finish.END or samples < _MIN_SPLIT_SAMPLES:
        return [answer]
    middle = quietest_middle(utterance.audio)
    return await _ask_all(utterance, [(0, middle), (middle, samples)], ask)


async def _ask_all(utterance: Utterance, parts: list[tuple[int, int]], ask: Ask) -> list[Transcription]:
    tasks = [asyncio.ensure_future(ask(_greedy(utterance, start, end))) for start, end in parts]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # where one failed, nobody waits for the other
            task.cancel()
    return [replace(one, start=start, end=end) for (start, end), one in zip(parts, found, strict=True)]


def _greedy(utterance: Utterance, start: int, end: int) -> Utterance:
    return Utterance(utterance.audio[start:end], utterance.language, utterance.context, languages=utterance.languages)


async def time_words(
    engine: EngineClient, span: SpeechSpan, text: str, language: str, how: WordTimes, *, priority: Priority
) -> tuple[Word, ...]:
    """Return the words of `text`, with times in milliseconds of the recording, or none if there is no text.

    Where no aligner can help (there is none, or it does not know the language, is not loaded, or failed) the times are
    estimates. Each word says which it has. Raises `ShuttingDown` only.
    """
    if how is WordTimes.NONE or not text.strip():
        return ()
    if how is WordTimes.ALIGNED and engine.traits.aligns:
        found = await _aligned(engine, span, text, language, priority)
        if found is not None:
            return found
    regions_ms = [(samples_to_ms(a), samples_to_ms(b)) for a, b in span.speech_regions or ((span.start, span.end),)]
    # A region that rounds to no length at all could not hold a word.
    return alignment.estimate(text, language, [(start, max(end, start + 1)) for start, end in regions_ms])


async def _aligned(
    engine: EngineClient, span: SpeechSpan, text: str, language: str, priority: Priority
) -> tuple[Word, ...] | None:
    regions = tuple((start - span.start, end - span.start) for start, end in span.speech_regions)
    try:
        found = await engine.align(AlignItem(span.audio, text, language, regions), priority=priority)
    except (EngineError, InvalidInput, DeadlineExceeded) as error:
        logger.warning("words are not aligned", code=error.code, reason=error.message)
        return None
    if not found.pieces:
        return None
    begin_ms = samples_to_ms(span.start)
    pieces = [(piece.text, begin_ms + piece.start_ms, begin_ms + piece.end_ms) for piece in found.pieces]
    return alignment.transfer_timestamps(text, pieces, (begin_ms, samples_to_ms(span.end)), language)
