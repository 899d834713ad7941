"""Time limits by a clock that stands still during loads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asr_server.schedule.job import RequestClock


class Now:
    """The system's clock, moved by hand."""

    s = 100.0

    def __call__(self):
        return self.s


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "progress"]), st.integers(0, 30))))
def test_a_load_stops_it_for_the_patience_behind_every_sign_of_progress(steps):
    """Counted second by second: while a load is under way, each sign of progress pays for ten seconds of patience."""
    now = Now()
    clock, loads, patience_s = RequestClock(patience_s=10.0, clock=now), [], 0
    for step, duration_s in steps:
        if step == "begin":
            loads.append(clock.loading())
            loads[-1].__enter__()
        elif step == "end" and loads:
            loads.pop(0).__exit__(None, None, None)
        elif step == "progress":
            clock.progress()
        patience_s = 10 if step != "end" or loads else patience_s
        for _ in range(duration_s):
            before_s = clock.now_s()
            now.s += 1
            stands = bool(loads) and patience_s > 0
            patience_s -= stands
            assert clock.now_s() == before_s + (not stands)
