"""A span at work: the second try, the times and the probabilities of its words, the language of its recording."""

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest

from asr_server.audio.segmentation import SpeechSpan
from asr_server.core.errors import DeadlineExceeded, TranscriptionFailed, UnsupportedLanguage
from asr_server.core.transcript import RepairReason, Segment, TimeSource, Timings, Word
from asr_server.engine import protocol
from asr_server.engine.client import Transcription
from asr_server.engine.protocol import DEFAULT_TRAITS, EngineTraits, Finish, Hypothesis, Utterance
from asr_server.recordings import span as module
from asr_server.recordings.requests import ResponseFormat, TranscriptionRequest, WordTimes
from asr_server.recordings.span import Heard, Rival, SpanResult, rated, retry, rival
from asr_server.schedule.job import Priority, RequestClock

SPAN = SpeechSpan(16_000, 32_000, np.zeros(16_000, np.float32), 0.9, ((16_000, 30_000),), "A")
DEADLINE = module.Deadline(RequestClock(), 70.0, 70.0)


def said(text, logprob=-0.5):
    hypothesis = _hypothesis(text, *((letter.encode(), math.exp(logprob)) for letter in text))
    return Transcription(hypothesis, 0.0, 0.0, 0.0, end=len(SPAN.audio))


class Engine:
    """Answers with `first`, and then with `second`. `asked`: the utterances, and how."""

    traits = DEFAULT_TRAITS

    def __init__(self, first, second=None):
        self.first, self.second, self.asked = first, second, []

    def stream(self, utterance, **how):
        self.asked.append((utterance, how))
        return SimpleNamespace(begun=asyncio.Event(), result=AsyncMock(return_value=self.first), cancel=lambda: None)

    async def transcribe(self, utterance, **how):
        self.asked.append((utterance, how))
        if isinstance(self.second, Exception):
            raise self.second
        return self.second


async def results(engine, around=(), span=SPAN):
    """The result of the span, weighed by those segments around it."""
    answer = {"response_format": ResponseFormat.VERBOSE_JSON, "timestamp_granularities": ("word", "segment")}
    request = TranscriptionRequest(**answer, mode="fast", prompt="Ann")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        check = module.ContextCheck()
        context = module.SpanContext(engine, group, request, DEADLINE, False, WordTimes.ESTIMATED, check)
        task = module.SpanTask(context, span, Priority.BULK)
        (found,) = await task.results()
        return await task.weighed(found, around)


async def test_the_words_of_a_channel_have_its_speaker():
    segment = (await results(Engine(said("Yes, I am.")))).segment
    assert (segment.speaker, {word.speaker for word in segment.words}) == ("A", {"A"})
    assert len(segment.words) == 3


def around(language, speaker):
    """The result of 5 s after the span."""
    answer = said("So.")
    segment = Segment(2_000, 7_000, "so", language, (), -0.5, 0.0, speaker=speaker)
    return SpanResult(segment, replace(answer, hypothesis=replace(answer.hypothesis, language=language)))


def doubtful():
    """An answer whose language is as probable as not."""
    tokens = [(letter.encode(), math.exp(-0.5)) for letter in "Yes."]
    return replace(said("Yes."), hypothesis=_hypothesis("Yes.", (b"", 0.5), *tokens))


async def test_another_language_is_asked_for_within_the_same_time():
    """The second try has the audio, the class of work and the time limit of the first; the segment says so."""
    engine = Engine(doubtful(), said("Ja.", logprob=-0.1))
    found = (await results(engine, [around("German", "A")])).segment
    assert (found.text, found.repaired) == ("Ja.", RepairReason.LANGUAGE)
    first, again = engine.asked
    assert first[1] == again[1] == {"priority": Priority.BULK, "deadline_s": DEADLINE}
    assert (again[0].language, again[0].languages, again[0].context) == (None, ("German",), first[0].context)
    assert np.array_equal(again[0].audio, SPAN.audio)


async def test_an_answer_stands_where_the_one_in_another_language_fails():
    """A recording whose time is up fails all the same."""
    german = [around("German", "A")]
    assert (await results(Engine(doubtful(), TranscriptionFailed("broken")), german)).segment.text == "Yes."
    with pytest.raises(ExceptionGroup) as failed:
        await results(Engine(doubtful(), DeadlineExceeded("late")), german)
    assert failed.group_contains(DeadlineExceeded)


async def test_an_engine_without_use_for_a_context_gets_none():
    engine = Engine(said("Yes."))
    engine.traits = EngineTraits(uses_context=False)
    await results(engine)
    assert engine.asked[0][0].context == ""


@pytest.mark.parametrize(("is_doubtful", "text"), [(False, "J"), (True, "Yes.")])
async def test_words_without_support_do_not_take_the_place_of_others(is_doubtful, text):
    """The second answer is likelier and has too few tokens for sound that may be no speech."""
    engine, span = Engine(doubtful(), said("J", logprob=-0.1)), replace(SPAN, is_doubtful=is_doubtful)
    assert (await results(engine, [around("German", "A")], span)).segment.text == text


async def test_a_channel_has_a_language_of_its_own():
    """A segment is compared with what the same person said."""
    engine = Engine(doubtful(), said("Ja."))
    assert (await results(engine, [around("German", "B")])).segment.repaired is None
    assert len(engine.asked) == 1


def test_spans_wait_at_the_same_time_and_their_work_adds_up():
    """The longest of the waits counts."""
    timings = Timings()
    for times_s in ((1.0, 0.25, 4.0), (3.0, 0.5, 2.0), (2.0, 0.25, 0.0)):
        timings = timings.with_span(*times_s)
    assert (timings.queue_ms, timings.infer_ms, timings.load_ms) == (3_000.0, 1_000.0, 4_000.0)


def _words(*texts):
    return [Word(text, n, n + 1, TimeSource.ESTIMATED) for n, text in enumerate(texts)]


def _hypothesis(text, *tokens, offsets=None):
    """`tokens`: bytes and probability of each."""
    pieces, logprobs = tuple(piece for piece, _ in tokens), tuple(math.log(probability) for _, probability in tokens)
    written = tuple(len(b"".join(pieces[: n + 1]).decode(errors="ignore")) for n in range(len(pieces)))
    told = {"offsets": written if offsets is None else offsets, "pieces": pieces}
    return Hypothesis(text, "English", tuple(range(len(tokens))), logprobs, Finish.END, 1, 1, 1, **told)


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("turn it on.", [(b"turn", 0.5), (b" it", 0.25), (b" on", 0.9), (b".", 0.4)], [0.5, 0.25, 0.6]),
        ("turn on", [(b"", 0.01), (b"tu", 0.9), (b"rn", 0.4), (b" on", 1.0)], [0.6, 1.0]),
        ("你好 a", [("你好".encode(), 0.5), (b" a", 0.7)], [0.5, 0.5, 0.7]),
        ("é a", [(b"\xc3", 0.9), (b"\xa9", 0.4), (b" ", 0.1), (b"a", 0.8)], [0.6, 0.8]),
    ],
)
def test_a_word_is_as_probable_as_its_tokens(text, tokens, expected):
    """The geometric mean over the tokens that write any of its characters, and over no others."""
    words = _words(*(text.split() if text.isascii() or "é" in text else ["你", "好", "a"]))
    assert [word.confidence for word in rated(words, _hypothesis(text, *tokens))] == expected


def test_words_that_do_not_map_have_no_confidence():
    """A text that was cleaned up has no offsets; a word that it does not hold has no place."""
    words = _words("turn", "on")
    assert list(rated(words, _hypothesis("turn on", (b"turn on", 0.5), offsets=()))) == words
    assert [word.confidence for word in rated(_words("off", "on"), _hypothesis("on", (b"on", 0.5)))] == [None, 0.5]


AUDIO = np.random.default_rng(0).normal(0, 0.1, 16_000 * 9).astype(np.float32)


def answer_of(finish, utterance):
    hypothesis = Hypothesis("text", "English", (1,), (-0.1,), finish, 1, 1, 1)
    return Transcription(hypothesis, 0.0, 0.0, 0.0, end=len(utterance.audio), temperature=utterance.temperature)


async def retried(utterance, again=Finish.END, first=Finish.LOOP):
    """Return the answers, of which those that are asked for again end so, and what is asked for."""
    ask = AsyncMock(side_effect=lambda one: answer_of(again, one))
    found = await retry(utterance, answer_of(first, utterance), ask)
    return found, [call.args[0] for call in ask.call_args_list]


@pytest.mark.parametrize("finish", [Finish.LOOP, Finish.BUDGET])
async def test_a_greedy_failure_is_asked_for_in_halves(finish):
    """The halves have all samples and the context of the whole, but not its draft and not its forced beginning."""
    audio = AUDIO.copy()
    audio[16_000 * 5 : 16_000 * 5 + 3_000] = 0
    whole = Utterance(audio, "English", "Zürich", draft=(1,), prefix=(2,), session="s", last=True, stream=True)
    whole = replace(whole, languages=("English", "German"))
    (first, second), asked = await retried(whole, first=finish)
    assert (first.start, first.end, second.end) == (0, second.start, len(audio))
    assert 16_000 * 5 - 512 <= second.start <= 16_000 * 5 + 3_000  # the quietest place of the middle
    assert np.array_equal(np.concatenate([half.audio for half in asked]), audio)
    for half in asked:
        assert (half.language, half.languages, half.context) == ("English", ("English", "German"), "Zürich")
        assert (half.draft, half.prefix, half.session) == ((), (), None)


async def test_a_sampled_failure_is_asked_for_greedily_first():
    """The whole again at temperature 0; halves only if that fails too, and no third try."""
    (answer,), _ = await retried(Utterance(AUDIO, temperature=0.7))
    assert (answer.end, answer.temperature) == (len(AUDIO), 0.0)
    answers, asked = await retried(Utterance(AUDIO, temperature=0.7), Finish.LOOP)
    assert [half.hypothesis.finish for half in answers] == [Finish.LOOP] * 2
    assert [utterance.temperature for utterance in asked] == [0.0] * 3


async def test_a_short_utterance_is_not_cut():
    """Under two seconds the cut costs more words than the loop."""
    (answer,), asked = await retried(Utterance(AUDIO[:31_000]))
    assert (answer.hypothesis.finish, asked) == (Finish.LOOP, [])


async def test_one_failing_half_cancels_the_other():
    """The error is the caller's, and nothing is left with the engine."""
    left = []

    async def ask(half):
        if left:
            raise ValueError("broken")
        left.append(asyncio.current_task())
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="broken"):
        await retry(Utterance(AUDIO), answer_of(Finish.LOOP, Utterance(AUDIO)), ask)
    await asyncio.wait(left, timeout=10)
    assert left[0].cancelled()


def _timed(engine, span, text, how=WordTimes.ALIGNED):
    return asyncio.run(module.time_words(engine, span, text, "English", how, priority=Priority.INTERACTIVE))


@pytest.mark.parametrize(("samples", "speech_regions"), [(1, ()), (7, ()), (7, ((0, 7),)), (16, ())])
def test_a_span_of_less_than_a_millisecond_has_words(samples, speech_regions):
    """A text that was heard in next to nothing keeps its words, in order, none of them empty."""
    span = SpeechSpan(0, samples, np.zeros(samples, np.float32), 1.0, speech_regions)
    found = _timed(None, span, "thank you", WordTimes.ESTIMATED)
    assert [word.text for word in found] == ["thank", "you"]
    assert all(word.start_ms < word.end_ms for word in found)


THANKS = SpeechSpan(32_000, 48_000, np.zeros(16_000, np.float32), 1.0, ((33_600, 40_000),))


def _aligner(**answer):
    return SimpleNamespace(traits=EngineTraits(aligns=True), align=AsyncMock(**answer))


def test_the_aligner_gets_a_span_and_its_times_come_back_as_those_of_the_recording():
    """Regions of speech count from the start of the span, as its audio does."""
    engine = _aligner(return_value=protocol.Alignment((protocol.AlignedPiece("thanks", 100, 400),)))
    found = _timed(engine, THANKS, "Thanks.")
    assert engine.align.call_args.args[0].speech_regions == ((1_600, 8_000),)
    assert [(word.text, word.start_ms, word.end_ms) for word in found] == [("Thanks.", 2_100, 2_400)]


@pytest.mark.parametrize("error", [TranscriptionFailed("no"), UnsupportedLanguage("no"), DeadlineExceeded("late")])
def test_words_without_an_aligner_that_helps_are_estimated(error):
    """The aligner may fail, not know the language, or be too late: the text has its words all the same."""
    found = _timed(_aligner(side_effect=error), THANKS, "Thanks.")
    assert found == (Word("Thanks.", 2_100, 2_500, TimeSource.ESTIMATED),)


def spoken(language, probability=1.0, words=(-0.3,), finish=Finish.END):
    """The answer whose language and words have these probabilities."""
    logprobs = (math.log(probability), *words)
    text, pieces = "so" * len(words), (b"", *[b"so"] * len(words))
    return Hypothesis(text, language, tuple(range(len(pieces))), logprobs, finish, 1, 1, 1, pieces=pieces)


def at(start_s, seconds, language, probability=1.0):
    return Heard(start_s, start_s + seconds, spoken(language, probability))


ENGLISH = [at(0, 20, "English"), at(20, 20, "English")]


@pytest.mark.parametrize(
    ("seconds", "probability", "is_sure"),
    [(1, 0.5, False), (1, 0.9, False), (1, 0.99, True), (9, 0.5, False), (9, 0.9, True), (11, 0.5, True)],
)
def test_a_language_must_be_the_surer_the_shorter_it_is_spoken(seconds, probability, is_sure):
    """After 40 s of another one; what is longer than 10 s tells its language by itself."""
    found = rival(at(40, seconds, "French", probability), ENGLISH)
    assert found is None if is_sure else found is not None and found.language == "English"


def test_a_change_of_language_is_kept():
    """Earlier speech that is surely in a language makes it probable, and the last minutes count most."""
    doubtful = at(60, 2, "French", 0.8)
    assert rival(doubtful, ENGLISH) is not None
    assert rival(doubtful, [*ENGLISH, at(40, 10, "French", 0.9)]) is None
    assert rival(at(700, 2, "English", 0.5), [*ENGLISH, at(690, 9, "French")]).language == "French"


def test_seconds_count_as_much_as_their_language_was_sure():
    """20 s that are hardly English are less than 12 that surely are French."""
    heard = [at(0, 20, "English", 0.4), at(20, 12, "French")]
    assert rival(at(32, 1, "English", 0.5), heard).language == "French"
    assert rival(at(32, 1, "French", 0.5), heard) is None


def test_an_outlier_is_shorter_than_the_speech_around_it():
    """A greeting is heard in the language that follows it, and not the other way round. Silence is in no language."""
    greeting, talk, silence = at(0, 1, "Dutch", 0.6), at(1, 8, "German", 0.6), Heard(2, 10, spoken("", words=()))
    assert rival(greeting, [talk]).language == "German"
    for outlier, others in ((talk, [greeting]), (greeting, []), (silence, ENGLISH), (greeting, [silence])):
        assert rival(outlier, others) is None


@pytest.mark.parametrize(
    ("second", "is_likelier"),
    [
        (spoken("English", 0.4), True),
        (spoken("English", 0.4, words=(-0.3,) * 5), True),
        (spoken("English", 0.001, words=(-1.5,)), False),
        (spoken("English", 0.4, words=(-6.0,)), False),
        (spoken("English", 0.4, words=()), False),
        (spoken("English", 0.4, finish=Finish.LOOP), False),
    ],
)
def test_language_and_words_together_decide(second, is_likelier):
    """The language by the model and by the speech around it, and the words as the model finds them in it."""
    assert Rival("English", 0.95).is_likelier(second, spoken("French", 0.55)) is is_likelier
    assert not Rival("English", 0.05).is_likelier(second, spoken("French", 0.55))
