"""The heaps of waiting jobs, and time limits by a clock that stands still during loads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.conftest import Clock
from asr_server.schedule.job import Job, JobQueue, Priority, RequestClock


def _filled(*arrivals):
    queue = JobQueue()
    for number, (priority, queued_s) in enumerate(arrivals):
        queue.push(Job(number, priority=priority, queued_s=queued_s))
    return queue


@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(0, 40)), max_size=30))
def test_one_class_leaves_in_the_order_it_came(arrivals):
    """Ties in time included. When all jobs leave at once, live work leaves first."""
    arrivals.sort(key=lambda arrival: arrival[1])
    queue = _filled(*arrivals)
    left = queue.drain()
    assert sorted(job.item for job in left) == list(range(len(arrivals)))
    assert not queue
    assert [job.priority.is_live for job in left] == sorted((job.priority.is_live for job in left), reverse=True)
    for priority in Priority:
        numbers = [job.item for job in left if job.priority is priority]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("patient", "urgent", "allowance_s"),
    [(Priority.BULK, Priority.INTERACTIVE, 30.0), (Priority.PARTIAL, Priority.FINAL, 5.0)],
)
def test_bulk_work_and_partials_give_way_for_a_bounded_time_only(patient, urgent, allowance_s):
    """More urgent work that comes within that time overtakes them; work that comes later waits for them."""
    queue = _filled((patient, 0.0), (urgent, allowance_s - 1), (urgent, allowance_s + 1))
    assert [job.item for job in queue.drain()] == [1, 0, 2]


def test_owners_take_turns_by_their_seconds():
    """A new owner does not wait for a hundred jobs of another one. From then on both get the same seconds."""
    queue = JobQueue()
    for number in range(100):
        queue.push(Job("many", owner=1, cost_s=2.0, queued_s=float(number)))
    assert {queue.pop(live=False).item for _ in range(10)} == {"many"}
    for _ in range(4):
        queue.push(Job("few", owner=2, cost_s=4.0, queued_s=1_000.0))
    left = [queue.pop(live=False).item for _ in range(12)]
    assert left.count("few") == 4
    assert "".join(item[0] for item in left[:6]) == "fmmfmm"


def test_abandoned_jobs_do_not_count():
    """Depth and waiting seconds are of jobs that somebody still waits for."""
    queue = JobQueue()
    stays, left = Job("a", cost_s=3.0), Job("b", priority=Priority.BULK, cost_s=5.0)
    for job in (stays, left):
        queue.push(job)
    left.future.cancel()
    assert queue.depth() == {"final": 0, "partial": 0, "interactive": 1, "bulk": 0}
    assert queue.waiting_s() == 3.0


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "progress"]), st.integers(0, 30))))
def test_a_load_stops_the_clock_for_the_patience_behind_every_sign_of_progress(steps):
    """Counted second by second: while a load is under way, each sign of progress pays for ten seconds of patience."""
    now = Clock()
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
            now.now_s += 1
            stands = bool(loads) and patience_s > 0
            patience_s -= stands
            assert clock.now_s() == before_s + (not stands)
