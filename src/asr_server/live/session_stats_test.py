"""What is counted of a live session, from the actions of its machine."""

from asr_server.live.machine.events import Ending, Final, Partial, ResetDone, UtteranceEnded
from asr_server.live.session_stats import LiveMetrics, SessionStats


def test_nothing_is_kept_of_utterances_that_are_over_or_discarded():
    """A session may last for a day."""
    stats = SessionStats(LiveMetrics(), lambda end: 0.0)
    for number in range(1, 101):
        stats.count(Partial(number, "on", "", "English", 1_000, 9_000))
        if number % 2:
            stats.count(ResetDone(number))
        else:
            stats.count(UtteranceEnded(number, 0, 100, Ending.PAUSE))
            stats.count(Final(number, "on", "English", 1_000, 9_000, Ending.PAUSE))
    assert not stats.committed
    assert not stats.stopped_s
