"""The audio that waits for the words of a final: of one utterance at a time, however many were discarded. Finals in
another language than the session's are heard again."""

import asyncio
import gc
import math
import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import AsyncMock

import numpy as np
import pytest

from asr_server.engine.client import Transcription
from asr_server.engine.protocol import EngineTraits, Finish, Hypothesis
from asr_server.live.inference import Engines, FinalWordTimes, LiveInference
from asr_server.live.machine.events import Ending, Final, FinalPart, ResultKind, Transcribe
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority


def _request(number, start=0):
    asked = {"kind": ResultKind.PARTIAL, "language": None, "context": "", "prefix": (), "draft": ()}
    return Transcribe(ticket=number, utterance=number, start_samples=start, audio=np.zeros(16_000, np.float32), **asked)


def test_the_audio_of_utterances_that_were_discarded_is_not_held():
    """A session of hours that clears its input again and again holds the audio of one utterance."""
    words, held = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, lambda timed: None), []
    for number in range(1, 6):
        request = _request(number)
        words.on_request(request)
        held.append(weakref.ref(request.audio))
    del request
    gc.collect()
    assert [audio() is not None for audio in held] == [False, False, False, False, True]


async def _words_of(requests, *parts):
    """The words of a final; what is estimated needs no engine."""
    sent = asyncio.Queue()
    words = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, sent.put_nowait)
    for request in requests:
        words.on_request(request)
    text, start, end = " ".join(part.text for part in parts), parts[0].start_samples, parts[-1].end_samples
    words.on_final(Final(1, text, "English", start, end, Ending.FLUSH, parts))
    return (await sent.get()).words


async def test_each_part_of_an_utterance_is_aligned_with_its_own_audio():
    parts = (FinalPart(0, 16_000, "one two"), FinalPart(80_000, 96_000, "three"))
    found = await _words_of([_request(1, 0), _request(1, 80_000)], *parts)
    assert [word.text for word in found] == ["one", "two", "three"]
    assert found[1].end_ms <= 1_000
    assert found[2].start_ms >= 5_000


class _Engine:
    """Finds English in long audio and French in short, half as probable, unless it may find one language only."""

    clock = SimpleNamespace(now_s=lambda: 0.0)
    traits = EngineTraits()

    def __init__(self):
        self.asked = []

    async def transcribe(self, utterance, **how):
        self.asked.append(utterance)
        language = "English" if len(utterance.audio) > 16_000 else "French"
        (language,) = utterance.languages or (language,)
        logprobs, pieces = (math.log(0.5), -0.1), (b"", language.encode())
        hypothesis = Hypothesis(language, language, (1, 2), logprobs, Finish.END, 1, 1, 1, pieces=pieces)
        return Transcription(hypothesis, 0.0, 0.0, 0.0, end=len(utterance.audio))


async def test_a_short_final_is_heard_again_in_the_language_of_the_session():
    """No partial is, and no final of a forced language or with committed words. The engine gets all of its audio."""
    engine = _Engine()
    inference = LiveInference(Engines(engine, engine), "s", 10.0)

    async def language_of(**changes):
        request = replace(_request(1), **{"kind": ResultKind.FINAL} | changes)
        return (await inference.transcribe(request, Priority.INTERACTIVE)).language

    talk = {"audio": np.zeros(160_000, np.float32)}
    assert [await language_of(), await language_of()] == ["French", "French"]
    assert await language_of(**talk, start_samples=20_000) == "English"
    for unchanged in ({"prefix": (1,)}, {"language": "French"}, {"kind": ResultKind.PARTIAL}):
        assert await language_of(start_samples=200_000, **unchanged) == "French"
    assert [(len(one.audio), one.prefix) for one in engine.asked[2:4]] == [(160_000, ()), (16_000, (1,))]
    assert len(engine.asked) == 6
    assert await language_of(start_samples=200_000) == "English"
    assert len(engine.asked) == 8
    assert [heard.answer.language for heard in inference.spoken] == ["French", "English", "English"]


async def test_a_final_that_loops_is_heard_in_halves():
    """The words of both come, as they do for a file."""
    said = ("first first first", Finish.LOOP), ("first", Finish.END), ("last", Finish.END)
    heard = [Hypothesis(text, "English", (1,), (-0.1,), finish, 1, 1, 1) for text, finish in said]
    engine = _Engine()
    engine.transcribe = AsyncMock(side_effect=[Transcription(one, 0.0, 0.0, 0.0, end=16_000) for one in heard])
    request = replace(_request(1), kind=ResultKind.FINAL, audio=np.arange(160_000, dtype=np.float32))
    result = await LiveInference(Engines(engine, engine), "s", 5.0).transcribe(request, Priority.FINAL)
    whole, *halves = (call.args[0].audio for call in engine.transcribe.await_args_list)
    assert (result.text, result.detached, len(halves)) == ("first last", True, 2)
    assert np.array_equal(np.concatenate(halves), whole)


async def test_words_lie_in_the_speech_and_not_in_its_margins():
    """The audio of a request may begin in the utterance before, whose words would otherwise follow."""
    request = replace(_request(1, 4_000), speech=(12_000, 16_000))
    found = await _words_of([request], FinalPart(8_000, 20_000, "one two"))
    assert (found[0].start_ms, found[-1].end_ms) == (750, 1_000)


@pytest.mark.parametrize(
    ("text", "logprob", "peak", "prefix", "kept"),
    [
        ("Yeah.", -1.0, 0.9, (), False),
        ("Yes.", -0.9, 0.99, (), True),  # small models are no surer of real answers
        ("Yeah.", -0.2, 0.9, (), True),
        ("Yeah, I know that.", -1.0, 0.9, (), True),
        ("Yeah.", -1.0, 0.9, (0,), True),  # it was shown as certain
    ],
)
async def test_a_short_line_without_support_is_dropped(text, logprob, peak, prefix, kept):
    """Neither the model nor the detector is sure of it. A partial stays as it is."""
    ids = tuple(range(len(text.split()) + 1))
    pieces = tuple(word.encode() for word in [*text.split(), "."])
    hypothesis = Hypothesis(text, "English", ids, (logprob,) * len(ids), Finish.END, 1, 1, 1, pieces=pieces)
    engine = _Engine()
    engine.transcribe = AsyncMock(return_value=Transcription(hypothesis, 0.0, 0.0, 0.0, end=16_000))
    inference = LiveInference(Engines(engine, engine), "s", 5.0)
    request = replace(_request(1), peak_probability=peak, prefix=prefix)
    for kind, is_kept in ((ResultKind.FINAL, kept), (ResultKind.PARTIAL, True)):
        result = await inference.transcribe(replace(request, kind=kind), Priority.FINAL)
        assert (result.text, bool(result.ids)) == ((text, True) if is_kept else ("", False))
