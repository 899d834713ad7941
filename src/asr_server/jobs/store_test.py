"""Owners take turns and have limits, and a part of a result counts once it is complete."""

from __future__ import annotations

from collections import Counter

import pytest

from asr_server.core.errors import Overloaded
from asr_server.jobs.record import JobPriority, JobRecord
from asr_server.jobs.store import JobLimits, JobPart, JobParts, WaitingJobs
from asr_server.recordings.requests import TranscriptionRequest

FIRST, SECOND = JobPart("a" * 64, 2), JobPart("b" * 64, 1)


def opened(paths):
    """The parts in the files at these paths."""
    return JobParts(*(path.open("a+b") for path in paths))


@pytest.fixture
def paths(tmp_path):
    """Two finished parts."""
    found = tmp_path / "speech", tmp_path / "spoken-parts"
    with opened(found) as parts:
        parts.write(b"1122")
        parts.finish_part(FIRST.key)
        parts.write(b"33")
        parts.finish_part(SECOND.key)
    return found


def state(paths):
    """Return what the next server finds, and what is on the disk then."""
    with opened(paths) as parts:
        parts.rewind()
        sound = [b"".join(parts.blocks(part)) for part in parts.finished]
        return list(parts.finished), sound, paths[0].read_bytes()


def test_finished_parts_are_found_again(paths):
    """Their samples are there, in order."""
    assert state(paths) == ([FIRST, SECOND], [b"1122", b"33"], b"112233")


def test_a_part_that_was_not_finished_is_cut_off(paths):
    """Half a sample is cut off too."""
    with paths[0].open("ab") as file:
        file.write(b"555")
    assert state(paths) == ([FIRST, SECOND], [b"1122", b"33"], b"112233")


@pytest.mark.parametrize("end", [b"", b"b" * 64 + b" 1", b"\0" * 67, b"b" * 64 + b" x\n"])
def test_a_part_counts_once_its_line_is_whole(paths, end):
    """A line that was written in part is as none."""
    lines = paths[1].read_bytes().splitlines(keepends=True)
    paths[1].write_bytes(lines[0] + end)
    assert state(paths) == ([FIRST], [b"1122"], b"1122")


def test_a_part_whose_samples_are_lost_is_not_finished(paths):
    """A file system that lost power may have the line and not the samples."""
    paths[0].write_bytes(b"11223")
    assert state(paths) == ([FIRST], [b"1122"], b"1122")


def test_parts_that_are_cut_make_room_for_others(paths):
    """The parts from there on are given up."""
    with opened(paths) as parts:
        parts.cut(1)
        parts.write(b"4444")
        parts.finish_part("c" * 64)
    assert state(paths) == ([FIRST, JobPart("c" * 64, 2)], [b"1122", b"4444"], b"11224444")


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


def _job(owner, name, priority=JobPriority.NORMAL):
    return JobRecord(name, TranscriptionRequest(), 1.0, owner=owner, priority=priority)


def test_a_priority_orders_the_jobs_of_one_owner_alone():
    """Higher ones come first, equal ones as they came, and another owner has its turn as before."""
    waiting = WaitingJobs(9)
    low, normal, high = JobPriority
    for owner, job, priority in (
        *(("ann", "a1", low), ("ann", "a2", normal), ("ben", "b1", low), ("ann", "a3", high)),
        *(("ann", "a4", high), ("ben", "b2", normal)),
    ):
        waiting.put(_job(owner, job, priority))
    assert [waiting.next(Counter()) for _ in range(6)] == ["a3", "b2", "a4", "b1", "a2", "a1"]


def test_owners_take_turns():
    """Each has its jobs in their order; whoever had a turn is behind the others, and has two under way at most."""
    waiting = WaitingJobs(2)
    for owner, job in (("ann", "a1"), ("ann", "a2"), ("ann", "a3"), ("ben", "b1"), ("cem", "c1"), ("ben", "b2")):
        waiting.put(_job(owner, job))
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
        waiting.put(_job(owner, job))
    for owner, job in (("ann", "a1"), ("ben", "b1"), ("dan", "d1")):
        waiting.remove(owner, job)
    assert [waiting.next(Counter()) for _ in range(2)] == ["a2", "c1"]
