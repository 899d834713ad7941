import random

import pytest

from asr_server.schedule.job import Priority
from asr_server_sizing.profile import AUDIO_TOKENS_PER_S, PROMPT_TOKENS
from asr_server_sizing.session import Lags, LiveSession
from asr_server_sizing.speech import Ask, Asked


class Script:
    """An engine that answers when the test says so, and the session in front of it."""

    def __init__(self, profile):
        self.now_s, self.sent, self.cancelled, self.lags = 0.0, [], [], Lags()
        self.session = LiveSession(profile, self, lambda: self.now_s, random.Random(1), self.lags)

    def submit(self, work, priority, seconds, on_done):
        number = len(self.sent)
        self.sent.append((work, priority, seconds))
        self._on_done = on_done
        return lambda: self.cancelled.append(number)

    def ask(self, ask, start_s, end_s, at_s):
        self.now_s = at_s
        self.session.on_ask(Asked(at_s, ask, start_s, end_s))

    def answer(self, at_s):
        self.now_s = at_s
        self._on_done()


@pytest.fixture
def script(make_profile):
    """A fresh session."""
    return Script(make_profile(tokens_per_s=2.0))


def test_one_request_at_a_time_and_the_next_with_the_newest_audio(script):
    """While the engine is slow, partials become fewer and not older. Of audio, whole pieces of 100 ms are there."""
    for at_s in (1.0, 1.5, 2.0):
        script.ask(Ask.PARTIAL, 0.5, at_s, at_s)
    assert [seconds for *_, seconds in script.sent] == [0.5]
    script.answer(2.25)
    assert [seconds for *_, seconds in script.sent] == [0.5, pytest.approx(1.7)]
    script.answer(2.5)
    assert script.lags.partials_s == [pytest.approx(1.25), pytest.approx(0.3)]


def test_a_partial_without_new_words_is_not_sent(make_profile):
    """One pass verifies what is known, and nothing follows."""
    script = Script(make_profile(tokens_per_s=2.0, partial_passes=(1,)))
    for at_s in (1.0, 1.4, 1.8):
        script.ask(Ask.PARTIAL, 0.0, at_s, at_s)
        script.answer(at_s + 0.1)
    assert script.lags.partials_s == [pytest.approx(0.1)]


def test_an_answer_in_the_pause_is_the_final(script):
    """It is there when the utterance ends; no other request is made."""
    script.ask(Ask.PAUSE, 0.0, 3.0, 3.0)
    script.answer(3.1)
    script.ask(Ask.END, 0.0, 3.0, 3.4)
    assert script.lags.finals_s == [0.0]
    assert [priority for _, priority, _ in script.sent] == [Priority.FINAL]


def test_an_utterance_that_ends_under_a_partial_is_asked_for_anew(script):
    """The partial is cancelled, and the final is as late as its answer."""
    script.ask(Ask.PARTIAL, 0.0, 2.0, 2.0)
    script.ask(Ask.END, 0.0, 2.2, 2.6)
    assert script.cancelled == [0]
    assert script.sent[1][1:] == (Priority.FINAL, 2.2)
    script.answer(3.0)
    assert script.lags.finals_s == [pytest.approx(0.4)]
    assert not script.lags.partials_s


def test_closed_windows_are_run_once(script):
    """Behind 8 s a partial runs the rest alone, unless an answer in a pause may have been the last."""
    tokens = []
    for ask, end_s in ((Ask.PARTIAL, 9.0), (Ask.PARTIAL, 10.0), (Ask.PAUSE, 11.0), (Ask.PARTIAL, 12.0)):
        script.ask(ask, 0.0, end_s, end_s)
        tokens.append(script.sent[-1][0].tokens)
        script.answer(end_s)
    audio = [9.0, 2.0, 3.0, 12.0]
    text = [0, 18, 20, 22]  # the last answer, verified
    assert tokens == [s * AUDIO_TOKENS_PER_S + t + PROMPT_TOKENS for s, t in zip(audio, text, strict=True)]
