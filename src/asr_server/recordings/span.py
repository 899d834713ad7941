"""One span of a recording: transcribe it as a row of the batch, retry it if that went wrong, and time its words.

Live finals are retried in the same way. If an answer repeats itself or uses up its token budget, the audio is
transcribed again in an easier form: greedily if the answer was sampled, then in two halves. An answer that still fails
is returned as it is; its `finish` says so.

A model may take a laugh, a name or a single word for any language. A segment in another language than the speech around
it is an outlier, unless the model is sure of its language. An outlier is transcribed again in the language around it,
and the likelier answer is kept. How sure the model must be depends on seconds of speech: the probability that it gives
a language is multiplied by the language's share of the speech. Seconds count in proportion to the probability of their
language, and half as much for each minute of distance, so after a change of language the new one soon prevails.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loguru import logger

from asr_server.audio.segmentation import SpeechSpan, quietest_middle
from asr_server.core.audio import SAMPLE_RATE, samples_to_ms, samples_to_s
from asr_server.core.errors import DeadlineExceeded, EngineError, EngineOutOfMemory, InvalidInput, TranscriptionFailed
from asr_server.core.transcript import RepairReason, Segment, Token, UnheardReason, Word
from asr_server.engine.client import EngineClient, Transcription
from asr_server.engine.protocol import AlignItem, Finish, Hypothesis, Utterance
from asr_server.recordings.requests import RecordingRequest, WordTimes
from asr_server.schedule.job import Priority, RequestClock
from asr_server.subtitle import alignment

# The least that the answer for a doubtful span must have to be kept. Such a span is sound without a pause: for music,
# models write a short sentence with some confidence, but it would be slower than anybody speaks.
_LEAST_LOGPROB = math.log(0.5)  # the mean of its tokens, each as likely as not
_LEAST_TOKENS_PER_S = 100 / 60  # slow speech has 100 words a minute, and a word has at least one token
# Models write "Yeah." for a breath or a hum that the detector takes for speech. A small model is often no surer of real
# short answers, but they have a frame that the detector is sure of.
_SHORT_TOKENS = 3
_SURE_SPEECH = 0.95

# A longer segment is enough to recognise its language: evaluations of language recognition test 3, 10 and 30 s.
LONGEST_S = 10.0
# At this distance in time, a segment says half as much about the language of another.
_HALF_S = 60.0
# How many segments before a segment are considered.
REACH = 64

# Failures of one row, after which others succeed. All other errors concern the whole recording: its caller left, its
# time is up, the server stops, or no row can be processed.
ROW_FAILURES = (TranscriptionFailed, EngineOutOfMemory)


# Transcribes an utterance: `EngineClient.transcribe` with its other arguments bound.
Ask = Callable[[Utterance], Awaitable["Transcription"]]


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """An answer, and what its check found."""

    answer: Transcription
    is_replaced: bool = False  # the first answer was only words of the context; this one was made without the context
    biased: frozenset[int] = frozenset()  # the numbers of its words that it has because of the context


class ContextCheck:
    """Checks the answers to utterances with a context. This base class accepts all of them."""

    async def is_doubtful(self, context: str, text: str) -> bool:
        """Return True if an answer that begins with this text may consist only of the context."""
        return False

    async def checked(
        self, utterance: Utterance, answer: Transcription, ask: Ask, *, is_sent: bool = False, marks: bool = False
    ) -> CheckedAnswer:
        """Return the answer to the utterance, or one without its context.

        `is_sent`: the text can no longer be replaced. `marks`: `biased` is wanted, which may take another pass. Raises
        what `ask` raises, except `ROW_FAILURES`, after which `answer` is returned unchecked. Cancelling cancels the
        calls of `ask`.
        """
        return CheckedAnswer(answer)


class Deadline:
    """The time by which a recording must be done: `idle_s` after its last progress, `longest_s` after its start at the
    latest."""

    def __init__(self, clock: RequestClock, idle_s: float, longest_s: float) -> None:
        self.clock = clock
        self.idle_s = idle_s
        self._longest_s = longest_s
        self._end_s = clock.now_s() + longest_s
        self.progress()

    def progress(self) -> None:
        self._moved_s = self.clock.now_s()

    def __call__(self) -> float:
        return min(self._end_s, self._moved_s + self.idle_s)

    @property
    def reason(self) -> str:
        """The beginning of the message of an error."""
        if self.clock.now_s() >= self._end_s:
            return f"The server's limit of {self._longest_s:g} s was reached"
        return f"The transcription made no progress for {self.idle_s:g} s, the server's limit,"


@dataclass(frozen=True, slots=True)
class SpanContext:
    """The common context of the spans of one recording."""

    engine: EngineClient
    group: asyncio.TaskGroup
    request: RecordingRequest
    deadline: Deadline
    deltas: bool  # the text is wanted as it is decoded
    word_times: WordTimes
    check: ContextCheck  # of answers to audio with a context
    may_fail: bool = False  # a span that fails is left out, and the answer reports it


@dataclass(frozen=True, slots=True)
class SpanResult:
    """The segment of a span, or of half of one, and the engine's answer that it was made from."""

    segment: Segment
    answer: Transcription

    @property
    def heard(self) -> Heard:
        return Heard(self.segment.start_ms / 1000, self.segment.end_ms / 1000, self.answer.hypothesis)


class SpanTask:
    """The transcription of a span in the recording's task group. Its job is queued at once.

    Text that `next_delta` has returned is final. So a span is not retried once any of its text was returned, and gives
    no more deltas once it is retried. Text that may only repeat the context is held back.
    """

    def __init__(self, context: SpanContext, span: SpeechSpan, priority: Priority) -> None:
        self._context = context
        self._span = span
        self._priority = priority
        request = context.request
        self._utterance = Utterance(
            audio=span.audio,
            language=request.spoken_language,
            languages=request.languages,
            # Without speech, models repeat the context.
            context=request.context if span.has_speech and context.engine.traits.uses_context else "",
            temperature=request.temperature,
            stream=context.deltas and not span.is_doubtful,  # text that is sent cannot be dropped
        )
        stream = context.engine.stream(self._utterance, priority=priority, deadline_s=context.deadline)
        self._stream = stream
        self.begun = stream.begun  # set with the first text, or at the end of the job
        self._ask: Ask = partial(context.engine.transcribe, priority=priority, deadline_s=context.deadline)
        self._taken = ""  # the text that `next_delta` has returned
        self.failure: Exception | None = None  # why the span was left out
        self._stopped: RepairReason | None = None  # why the first answer was stopped, if it is asked for again
        self._is_retried = False  # the answer may be replaced, so no more deltas are given
        self._task = context.group.create_task(self._run())
        # A task that is cancelled before its first step never awaits the stream: the job would stay in the queue.
        self._task.add_done_callback(lambda _: stream.cancel())

    async def next_delta(self) -> str | None:
        """Return the next text as it is decoded, or None at its end or when the span is retried.

        Raises `TimeoutError` at the deadline.
        """
        held = ""
        async for text in self._stream:
            held += text
            context, is_open = self._utterance.context, not self._taken
            is_doubtful = bool(context) and is_open and await self._context.check.is_doubtful(context, held)
            if self._is_retried:
                return None
            if not is_doubtful:
                self._taken += held
                return held
        return None

    async def results(self) -> list[SpanResult]:
        """Return one result, or two for halves. Raises the engine's error, unless other spans may continue."""
        found = await self._task
        if not isinstance(found, Exception):
            return found
        if not self._context.may_fail or not isinstance(found, ROW_FAILURES):
            raise found
        self.failure = found
        return [await self._left_out()]

    @property
    def may_be_outlier(self) -> bool:
        """Return True if the speech around the span may change its detected language."""
        traits = self._context.engine.traits
        detects = self._context.request.spoken_language is None and traits.scores and len(traits.languages) > 1
        return detects and samples_to_s(len(self._span.audio)) <= LONGEST_S

    async def weighed(self, result: SpanResult, others: Iterable[SpanResult]) -> SpanResult:
        """Transcribe again in the language of the speaker's other results, if the audio might be in it, and return the
        likelier result. Otherwise return `result`.

        Raises what the engine raises, except failures of this row, after which it returns `result`.
        """
        answer, speaker = result.answer, result.segment.speaker
        other = rival(result.heard, (one.heard for one in others if one.segment.speaker == speaker))
        if other is None:
            return result
        # Detection is limited to one language, which is not forced, so that the model gives its probability.
        utterance = replace(_greedy(self._utterance, answer.start, answer.end), languages=(other.language,))
        try:
            found = await self._ask(utterance)
        except ROW_FAILURES:
            return result
        if not other.is_likelier(found.hypothesis, answer.hypothesis):
            return result
        second = await self._result(replace(found, start=answer.start, end=answer.end), utterance)
        if not second.segment.text:  # the second has too little support, unlike the first
            return result
        return replace(second, segment=replace(second.segment, repaired=RepairReason.LANGUAGE))

    async def _run(self) -> list[SpanResult] | Exception:
        try:
            answers = await self._answers()
            results = [self._result(answer, part_of(self._utterance, answer)) for answer in answers]
            if len(results) == 1:  # nearly always: no tasks are needed
                return [await results[0]]
            return list(await asyncio.gather(*results))
        except Exception as error:
            # Raising it here would end the whole group. `results` raises it, after earlier speech has been sent.
            return error

    async def _answers(self) -> list[Transcription]:
        first = await self._stream.result()
        if self._taken:
            return [first]
        if (finish := first.hypothesis.finish) is not Finish.END:
            self._stopped, self._is_retried = RepairReason(finish), True
        return await retry(self._utterance, first, self._ask)

    async def _left_out(self) -> SpanResult:
        """Return the result of a failed span, with the text that `next_delta` had returned."""
        said = Hypothesis(self._taken, "", (), (), Finish.END, 0, 0, 0)
        answer = Transcription(said, 0.0, 0.0, 0.0, end=len(self._span.audio))
        result = await self._timed(CheckedAnswer(answer))
        return replace(result, segment=replace(result.segment, cut_short=UnheardReason.FAILED, repaired=None))

    async def _result(self, first: Transcription, utterance: Utterance) -> SpanResult:
        """Return the result for the answer to an utterance."""
        is_doubtful = self._span.is_doubtful and not _has_support(first.hypothesis, first.end - first.start)
        if is_doubtful or (not self._taken and is_invented(first.hypothesis, self._span.peak_probability)):
            first = replace(first, hypothesis=replace(first.hypothesis, text=""))
        if not utterance.context:
            return await self._timed(CheckedAnswer(first))
        check = self._context.check
        if not self._taken and await check.is_doubtful(utterance.context, first.hypothesis.text):
            self._is_retried = not self._taken
        is_sent, marks = bool(self._taken), "word" in self._context.request.listed
        return await self._timed(await check.checked(utterance, first, self._ask, is_sent=is_sent, marks=marks))

    async def _timed(self, checked: CheckedAnswer) -> SpanResult:
        """Return the result of an answer, with the times of its words."""
        offset, answer, hypothesis = self._span.start, checked.answer, checked.answer.hypothesis
        part = self._span.part(offset + answer.start, offset + answer.end)
        how, engine = self._context.word_times, self._context.engine
        words = await time_words(engine, part, hypothesis.text, hypothesis.language, how, priority=self._priority)
        spoken = tuple(
            replace(word, speaker=part.speaker, bias=number in checked.biased)
            for number, word in enumerate(rated(words, hypothesis))
        )
        return SpanResult(_segment(part, checked, spoken, self._stopped), answer)


def is_invented(hypothesis: Hypothesis, peak_probability: float) -> bool:
    """Return True for a word or two of which neither the model nor the voice detector is sure.

    `peak_probability`: the highest speech probability of a frame.
    """
    is_short = _spoken_tokens(hypothesis) <= _SHORT_TOKENS
    return is_short and hypothesis.mean_logprob < _LEAST_LOGPROB and peak_probability < _SURE_SPEECH


def _spoken_tokens(hypothesis: Hypothesis) -> int:
    return len(hypothesis.ids) - hypothesis.pieces.count(b"")  # ids with empty pieces name the language


def _has_support(hypothesis: Hypothesis, samples: int) -> bool:
    """Return True if the words are likely enough for this many samples of sound that may not be speech."""
    return (
        hypothesis.mean_logprob >= _LEAST_LOGPROB
        and _spoken_tokens(hypothesis) >= _LEAST_TOKENS_PER_S * samples_to_s(samples)
        and any(map(str.isalnum, hypothesis.text))
    )


def stopped(answer: Hypothesis) -> UnheardReason | None:
    return None if answer.finish is Finish.END else UnheardReason(answer.finish)


def _segment(
    span: SpeechSpan, checked: CheckedAnswer, words: tuple[Word, ...], first_stopped: RepairReason | None
) -> Segment:
    answer, hypothesis = checked.answer, checked.answer.hypothesis
    cut_short = stopped(hypothesis)
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
        repaired=None if cut_short else RepairReason.CONTEXT if checked.is_replaced else first_stopped,
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
        if piece  # tokens with empty pieces name the language
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


# Halving a shorter utterance is more likely to lose a word at the cut than to end a loop.
_MIN_SPLIT_SAMPLES = 2 * SAMPLE_RATE


async def retry(utterance: Utterance, first: Transcription, ask: Ask) -> list[Transcription]:
    """Return the answers for `utterance`, whose first answer was `first`: one, or two for its halves, in order.

    Raises what `ask` raises. Cancelling cancels its calls. A retry uses only the audio, languages and context of the
    utterance: a draft or a forced prefix belongs to the answer that went wrong, and it is unknown in which half it
    ends.
    """
    samples = len(utterance.audio)
    answer = first
    if answer.hypothesis.finish is not Finish.END and utterance.temperature > 0:
        answer = await ask(_greedy(utterance, 0, samples))
    if answer.hypothesis.finish is Finish.END or samples < _MIN_SPLIT_SAMPLES:
        return [answer]
    middle = quietest_middle(utterance.audio)
    parts = (0, middle), (middle, samples)
    tasks = [asyncio.ensure_future(ask(_greedy(utterance, *part))) for part in parts]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # if one failed, nobody waits for the other
            task.cancel()
    return [replace(one, start=start, end=end) for (start, end), one in zip(parts, found, strict=True)]


def part_of(utterance: Utterance, answer: Transcription) -> Utterance:
    """Return the part of the utterance for which `retry` returned `answer`."""
    is_whole = answer.end - answer.start == len(utterance.audio)
    return utterance if is_whole else _greedy(utterance, answer.start, answer.end)


def _greedy(utterance: Utterance, start: int, end: int) -> Utterance:
    return Utterance(utterance.audio[start:end], utterance.language, utterance.context, languages=utterance.languages)


async def time_words(
    engine: EngineClient, span: SpeechSpan, text: str, language: str, how: WordTimes, *, priority: Priority
) -> tuple[Word, ...]:
    """Return the words of `text`, with times in milliseconds of the recording, or none if there is no text.

    If no aligner can help (there is none, or it does not know the language, is not loaded, or failed), the times are
    estimates. Each word says how its times were found. Raises `ShuttingDown` only.
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


@dataclass(frozen=True, slots=True)
class Heard:
    """A stretch of speech of one person or more, and the answer for it."""

    start_s: float
    end_s: float
    answer: Hypothesis

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def around(self, others: Iterable[Heard]) -> defaultdict[str, float]:
        """Return the seconds of each language in `others`, weighted by probability and distance."""
        weights: defaultdict[str, float] = defaultdict(float)
        for other in others:
            if other.answer.text and other.answer.language:
                gap_s = max(0.0, self.start_s - other.end_s, other.start_s - self.end_s)
                probability = math.exp(other.answer.language_logprob)
                weights[other.answer.language] += other.seconds * probability * 0.5 ** (gap_s / _HALF_S)
        return weights


@dataclass(frozen=True, slots=True)
class Rival:
    """The language of the speech around a segment, which may also be the segment's language."""

    language: str
    share: float  # its share of the seconds in it and in the detected language (0..1, both exclusive)

    def is_likelier(self, second: Hypothesis, first: Hypothesis) -> bool:
        """Return True if `second`, in this language, is likelier than `first`, in the detected one. An answer without
        words and one that was stopped never are."""
        if not second.text or second.finish is not Finish.END:
            return False
        return _mean_logprob(second, self.share) > _mean_logprob(first, 1.0 - self.share)


def _mean_logprob(answer: Hypothesis, share: float) -> float:
    """Return the log-probability of language and words, divided by the number of tokens: answers differ in length."""
    return (math.log(share) + sum(answer.logprobs)) / len(answer.ids)


def rival(one: Heard, others: Iterable[Heard]) -> Rival | None:
    """Return the language in which to transcribe a segment again, judged by the speech around it, or None.

    The model gives that language at most the probability that the detected one leaves to all others. If even this
    would not make it the likelier one, the detected language is sure.
    """
    found = one.answer.language
    if not one.answer.text or not found or one.seconds > LONGEST_S:
        return None
    weights = one.around(others)
    language = max(weights, key=weights.__getitem__, default=found)
    # The segment's own seconds count for both, since it may be in either language.
    own_s, other_s = weights[found] + one.seconds, weights[language] + one.seconds
    probability = math.exp(one.answer.language_logprob)
    is_outlier = weights[language] > own_s  # never true of the detected language
    if not is_outlier or probability * own_s >= (1.0 - probability) * other_s:
        return None
    return Rival(language, other_s / (own_s + other_s))


def main_language(segments: Sequence[Segment]) -> str:
    """Return the language with the most seconds of speech, or "". Numbers of characters differ between scripts."""
    weights: Counter[str] = Counter()
    for segment in segments:
        if segment.language:
            weights[segment.language] += segment.end_ms - segment.start_ms
    return max(weights, key=weights.__getitem__, default="")
