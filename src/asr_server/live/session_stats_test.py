"""What is counted of a live session, from the actions of its machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.live.machine.events import Ending, Final, Partial, ResetDone, UtteranceEnded, UtteranceStarted
from asr_server.live.machine.utterance import AudioAccount
from asr_server.live.session_stats import LiveObserver, SessionOutcome, SessionStats

WORDS = st.lists(st.sampled_from(["turn", "on", "the", "kitchen", "lights"]), min_size=1, max_size=12)


class Recorder(LiveObserver):
    """Notes what it is told."""

    def __init__(self):
        self.lags, self.partials, self.endings, self.finals, self.over = [], 0, [], [], []

    def partial(self):
        self.partials += 1

    def committed(self, lag_s):
        self.lags.append(lag_s)

    def stopped(self, ending):
        self.endings.append(ending)

    def final(self, after_s):
        self.finals.append(after_s)

    def ended(self, outcome, audio_s):
        self.over.append((outcome, audio_s))


def _partial(number, committed, tentative):
    return Partial(number, committed, tentative, "English", 1_000, 9_000)


def _final(number, text):
    return Final(number, text, "English", 1_000, 9_000, Ending.PAUSE)


@given(WORDS, st.lists(st.integers(0, 12), max_size=6), st.booleans())
def test_every_word_is_committed_once(words, cuts, blank_first):
    """However the commits cut the text, with the blank before the next word or without: as many lags as words."""
    observer, asked = Recorder(), []
    stats = SessionStats(observer, lambda end: asked.append(end) or 0.5)
    text = " ".join(words)
    for cut in sorted(cuts):
        committed = " ".join(words[:cut]) + (" " if blank_first and 0 < cut < len(words) else "")
        stats.count(_partial(1, committed, text[len(committed) :]))
    stats.count(_final(1, text))
    assert observer.lags == [0.5] * len(words)
    assert asked == sorted(asked)
    assert asked[-1] == 9_000
    assert all(1_000 < end <= 9_000 for end in asked)
    assert observer.partials == len(cuts)


def test_utterances_are_counted_by_ending_and_finals_of_flushes_without_one_are_not():
    """A flush of nothing has a final and no utterance."""
    observer = Recorder()
    stats = SessionStats(observer, lambda end: 0.0)
    stats.count(UtteranceStarted(1, 0))
    stats.count(UtteranceEnded(1, 0, 100, Ending.PAUSE))
    stats.count(_final(1, "on"))
    stats.count(UtteranceEnded(2, 100, 100, Ending.FLUSH))
    stats.count(Final(2, "", "", 100, 100, Ending.FLUSH))
    assert (observer.endings, len(observer.finals), observer.lags) == ([Ending.PAUSE], 1, [0.0])


def test_nothing_is_kept_of_utterances_that_are_over_or_discarded():
    """A session may last for a day."""
    stats = SessionStats(LiveObserver(), lambda end: 0.0)
    for number in range(1, 101):
        stats.count(_partial(number, "on", ""))
        if number % 2:
            stats.count(ResetDone(number))
        else:
            stats.count(UtteranceEnded(number, 0, 100, Ending.PAUSE))
            stats.count(_final(number, "on"))
    stats.count(ResetDone(None))
    assert not stats._committed
    assert not stats._stopped_s


@pytest.mark.parametrize(
    ("first", "clean", "kept"),
    [
        (None, True, SessionOutcome.CLOSED),
        (None, False, SessionOutcome.LOST),
        (SessionOutcome.DRAINED, True, SessionOutcome.DRAINED),
        (SessionOutcome.FAILED, False, SessionOutcome.FAILED),
    ],
)
def test_the_first_reason_for_an_end_stays(first, clean, kept):
    """Of a drained session the client leaves too."""
    observer = Recorder()
    stats = SessionStats(observer, lambda end: 0.25)
    stats.count(_partial(1, "turn on", ""))
    if first:
        stats.outcome = first
    stats.on_disconnect(clean=clean)
    line = stats.close(AudioAccount(32_000, 16_000, 16_000, 0, 0))
    assert observer.over == [(kept, 2.0)]
    assert line == {
        "audio_s": 2.0,
        "speech_s": 1.0,
        "utterances": 0,
        "partials": 1,
        "commit_p50_ms": 250,
        "commit_p95_ms": 250,
        "outcome": kept.value,
    }


def test_a_session_without_words_has_no_percentiles():
    """None, not 0: nothing was fast."""
    line = SessionStats(LiveObserver(), lambda end: 0.0).close(AudioAccount(0, 0, 0, 0, 0))
    assert line["commit_p50_ms"] is line["commit_p95_ms"] is None
