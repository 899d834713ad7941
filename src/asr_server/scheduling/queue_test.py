"""The heap of waiting jobs."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.scheduling.job import Job, Priority
from asr_server.scheduling.queue import JobQueue


def _filled(*arrivals):
    queue = JobQueue()
    for priority, queued_s in arrivals:
        queue.push(Job((priority, queued_s), priority=priority, queued_s=queued_s))
    return queue


@given(st.lists(st.tuples(st.sampled_from(Priority), st.integers(0, 1000))))
def test_live_work_always_leaves_first(arrivals):
    """However long the rest has waited, no other job leaves before a live one."""
    classes = [job.priority for job in _filled(*arrivals).drain()]
    live = classes.count(Priority.LIVE)
    assert all(c is Priority.LIVE for c in classes[:live])


@given(st.lists(st.sampled_from(Priority), max_size=30))
def test_one_class_leaves_in_the_order_it_came(classes):
    """First in, first out within a class, ties in time included."""
    jobs = [Job(i, priority=p, queued_s=1.0) for i, p in enumerate(classes)]
    queue = JobQueue()
    for job in jobs:
        queue.push(job)
    left = queue.drain()
    for priority in Priority:
        numbers = [job.item for job in left if job.priority is priority]
        assert numbers == sorted(numbers)


def test_bulk_work_gives_way_for_a_bounded_time_only():
    """Interactive work that comes within 30 s of bulk work overtakes it; what comes later waits behind it."""
    queue = _filled((Priority.BULK, 0.0), (Priority.INTERACTIVE, 29.0), (Priority.INTERACTIVE, 31.0))
    assert [job.item[1] for job in queue.drain()] == [29.0, 0.0, 31.0]


def test_abandoned_jobs_do_not_count():
    """Depth and waiting seconds are of jobs that somebody still waits for."""
    queue = JobQueue()
    stays, left = Job("a", cost_s=3.0), Job("b", priority=Priority.BULK, cost_s=5.0)
    for job in (stays, left):
        queue.push(job)
    left.future.cancel()
    assert queue.depth() == {"live": 0, "interactive": 1, "bulk": 0}
    assert queue.waiting_s() == 3.0


def test_an_empty_queue_says_so():
    """Popping nothing is None."""
    assert JobQueue().pop() is None


def test_live_only_leaves_the_rest_where_it_is():
    """Asked for live work, the queue gives nothing else away."""
    queue = _filled((Priority.BULK, 0.0), (Priority.LIVE, 1.0))
    assert queue.pop(live_only=True).priority is Priority.LIVE
    assert queue.pop(live_only=True) is None
    assert len(queue) == 1
