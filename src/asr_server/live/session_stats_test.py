"""What is counted of a live session, from the actions of its machine."""

from prometheus_client import CollectorRegistry

from asr_server.core.conftest import counts
from asr_server.live.machine.events import Ending, Final, Partial, ResetDone, UtteranceEnded, UtteranceStarted
from asr_server.live.session_stats import LiveMetrics, SessionStats


def _partial(number, committed, tentative):
    return Partial(number, committed, tentative, "English", 1_000, 9_000)


def _final(number, text):
    return Final(number, text, "English", 1_000, 9_000, Ending.PAUSE)


def test_utterances_are_counted_by_ending_and_finals_of_flushes_without_one_are_not():
    """A flush of nothing has a final and no utterance."""
    registry = CollectorRegistry()
    stats = SessionStats(LiveMetrics(registry), lambda end: 0.0)
    stats.count(UtteranceStarted(1, 0))
    stats.count(UtteranceEnded(1, 0, 100, Ending.PAUSE))
    stats.count(_final(1, "on"))
    stats.count(UtteranceEnded(2, 100, 100, Ending.FLUSH))
    stats.count(Final(2, "", "", 100, 100, Ending.FLUSH))
    assert counts(registry, "asr_live_utterances_total") == {("pause",): 1}
    assert registry.get_sample_value("asr_live_final_seconds_count") == 1
    assert registry.get_sample_value("asr_live_commit_lag_seconds_count") == 1


def test_nothing_is_kept_of_utterances_that_are_over_or_discarded():
    """A session may last for a day."""
    stats = SessionStats(LiveMetrics(), lambda end: 0.0)
    for number in range(1, 101):
        stats.count(_partial(number, "on", ""))
        if number % 2:
            stats.count(ResetDone(number))
        else:
            stats.count(UtteranceEnded(number, 0, 100, Ending.PAUSE))
            stats.count(_final(number, "on"))
    stats.count(ResetDone(None))
    assert not stats.committed
    assert not stats.stopped_s
