"""The order of jobs of several keys, and limits of the jobs and bytes of a key."""

from collections import Counter

import pytest

from asr_server.core.errors import Overloaded
from asr_server.jobs.shares import JobLimits, WaitingJobs


def limits(**others):
    return JobLimits(ttl_s=100, timeout_s=50, **{"max_jobs": 9, **others})


@pytest.mark.parametrize(
    ("wanted", "jobs", "accepted"),
    [
        ({}, {"ben": 8}, True),
        ({}, {"ben": 9}, False),
        ({}, {"ann": 8}, True),  # the only key of a server may have all
        ({"key_max_jobs": 3}, {"ann": 2, "ben": 5}, True),
        ({"key_max_jobs": 3}, {"ann": 3}, False),
        # Where others have keys, a key may have as many as it leaves free.
        ({"several_keys": True}, {"ann": 4}, True),
        ({"several_keys": True}, {"ann": 5}, False),
        ({"several_keys": True}, {"ann": 2, "ben": 4}, True),
        ({"several_keys": True}, {"ann": 3, "ben": 3}, False),
    ],
)
def test_a_key_has_its_share_of_jobs(wanted, jobs, accepted):
    """The stated number; without one and with several keys, no more than it leaves for others."""
    if accepted:
        limits(**wanted).check_jobs(Counter(jobs), "ann")
    else:
        with pytest.raises(Overloaded):
            limits(**wanted).check_jobs(Counter(jobs), "ann")


@pytest.mark.parametrize(
    ("wanted", "kept", "free", "accepted"),
    [
        ({}, 900, 0, True),
        ({"key_max_bytes": 500}, 500, 0, True),
        ({"key_max_bytes": 500}, 501, 9_000, False),
        ({"several_keys": True}, 500, 500, True),
        ({"several_keys": True}, 501, 500, False),
        ({"several_keys": True}, 1, -1, False),
    ],
)
def test_a_key_has_its_share_of_the_disk(wanted, kept, free, accepted):
    """The stated bytes; without them and with several keys, as much as is left free. Nobody without a key has less."""
    limits(**wanted).check_bytes(kept, free, "")
    if accepted:
        limits(**wanted).check_bytes(kept, free, "ann")
    else:
        with pytest.raises(Overloaded):
            limits(**wanted).check_bytes(kept, free, "ann")


def test_owners_take_turns():
    """Each has its jobs in their order; whoever had a turn is behind the others, and has two under way at most."""
    waiting = WaitingJobs(2)
    for owner, job in (("ann", "a1"), ("ann", "a2"), ("ann", "a3"), ("ben", "b1"), ("cem", "c1"), ("ben", "b2")):
        waiting.put(owner, job)
    under_way = Counter()
    taken = []
    while (job := waiting.next(under_way)) is not None:
        under_way[{"a": "ann", "b": "ben", "c": "cem"}[job[0]]] += 1
        taken.append(job)
    assert taken == ["a1", "b1", "c1", "a2", "b2"]
    under_way["ann"] -= 1
    assert waiting.next(under_way) == "a3"


def test_a_job_that_is_taken_out_is_not_next():
    """Other waiting jobs of its owner make no difference."""
    waiting = WaitingJobs(2)
    for owner, job in (("ann", "a1"), ("ann", "a2"), ("ben", "b1"), ("cem", "c1")):
        waiting.put(owner, job)
    for owner, job in (("ann", "a1"), ("ben", "b1"), ("dan", "d1")):
        waiting.remove(owner, job)
    assert [waiting.next(Counter()) for _ in range(2)] == ["a2", "c1"]
