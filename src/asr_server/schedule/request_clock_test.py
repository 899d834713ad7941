"""Time limits by a clock that stands still during loads."""

from __future__ import annotations

import threading

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


def test_threads_may_load_at_once():
    """The engine and its aligner do: the clock stands while one of them loads, and afterwards it runs again."""
    now = Now()
    clock, began_s, all_load = RequestClock(clock=now), 100.0, threading.Barrier(5)

    def load():
        for _ in range(200):
            with clock.loading():
                clock.progress()
        with clock.loading():
            all_load.wait(10)
            all_load.wait(10)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    all_load.wait(10)
    now.s += 5
    assert clock.now_s() == began_s
    all_load.wait(10)
    for thread in threads:
        thread.join()
    now.s += 3
    assert clock.now_s() == began_s + 3
