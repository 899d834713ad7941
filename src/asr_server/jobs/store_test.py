"""The rules of the store that `store_machine_test.py` leaves out: limits of owners, files, priorities, follow-ups."""

import io
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest

from asr_server.core.errors import JobsUnavailable, Overloaded
from asr_server.jobs import database, store
from asr_server.jobs.conftest import RECORDS, REQUEST, RESULT
from asr_server.jobs.record import FollowUp, JobPriority, JobRecord, RecordState, new_id
from asr_server.jobs.store import ClaimLost, JobLimits, JobStore
from asr_server.recordings.requests import TranscriptionRequest

LEASE_S, TTL_S = 60.0, 110.0
NOBODY = " "


def limits(**others):
    return JobLimits(**{"ttl_s": TTL_S, "timeout_s": 50, "max_jobs": 9, **others})


@pytest.mark.parametrize(
    ("several_keys", "what", "used", "refused"),
    [
        (False, "jobs", [Counter(ben=9)], Overloaded),
        (False, "jobs", [Counter(ann=8)], None),  # the only key of a server may have all
        # Where others have keys, a key may have as many as it leaves free.
        (True, "jobs", [Counter(ann=4)], None),
        (True, "jobs", [Counter(ann=5)], Overloaded),
        (True, "jobs", [Counter(ann=2, ben=4)], None),
        (True, "jobs", [Counter(ann=3, ben=3)], Overloaded),
        # Bytes that a key has, and that are free.
        (False, "bytes", [900, 0], None),
        (False, "bytes", [900, -1], JobsUnavailable),
        (True, "bytes", [500, 500], None),
        (True, "bytes", [501, 500], Overloaded),
        (True, "bytes", [1, -1], Overloaded),
    ],
)
def test_a_key_has_its_share_of_jobs(several_keys, what, used, refused):
    """And of the space that they take."""
    with pytest.raises(refused) if refused else nullcontext():
        getattr(limits(several_keys=several_keys), f"check_{what}")(*used, "ann")


@pytest.fixture
async def jobs(server):
    made = JobStore(server.connect(), limits(), RECORDS, LEASE_S)
    await made.database.prepare()
    yield made
    await made.database.close()


async def accepted(store, owner="", recording=b"audio", **others):
    record = JobRecord(new_id(), REQUEST, 1.0, owner=owner, **others)
    await store.add(record, io.BytesIO(recording), len(recording))
    return record


async def content(store, identity, name="result"):
    """Return a file of a job, b"" if it has none."""
    try:
        size_bytes = await store.database.size_bytes(identity, name)
    except FileNotFoundError:
        return b""
    found = b"".join([piece async for piece in store.database.pieces(identity, name)])
    assert size_bytes == len(found)
    return found


async def test_what_is_stored_comes_back(jobs, monkeypatch):
    """The store returns the record, and each file in chunks, although its source was partly read before."""
    monkeypatch.setattr(database, "_CHUNK_BYTES", 4)
    request = TranscriptionRequest(
        speakers=True, known_speaker_names=("Ann", "Ben"), known_speaker_references=(b"RIFF\xff", b"\x80")
    )
    record, source = JobRecord(new_id(), request, 1.0), io.BytesIO(b"0123456789")
    source.read(3)
    await jobs.add(record, source, 10)
    stored = await jobs.get(record.id, "")
    assert stored.request.known_speaker_references == (b"", b"")
    files = [await content(jobs, record.id, name) for name in ("recording", "clip-0", "clip-1")]
    assert files == [b"0123456789", b"RIFF\xff", b"\x80"]
    claim = await jobs.claim(2.0)
    with await jobs.database.open(record.id, "recording") as copy:
        assert copy.read() == b"0123456789"
    ended = await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words and words"), b"said")
    assert await jobs.get(record.id, "") == ended == (await jobs.records([record.id]))[record.id]
    assert await jobs.transcript(record.id) == b"said"
    files = [await content(jobs, record.id, name) for name in ("recording", "clip-0", "clip-1", "result")]
    assert files == [b"", b"", b"", b"words and words"]
    await jobs.remove(record.id, "")
    assert await jobs.transcript(record.id) == await content(jobs, record.id) == b""
    monkeypatch.setattr(jobs.database, "pieces", Mock(side_effect=PermissionError(13, "No.")))
    with pytest.raises(JobsUnavailable):
        await jobs.transcript(record.id)


async def test_a_recording_that_breaks_off_leaves_nothing(jobs, server):
    broken = Mock(read=Mock(side_effect=OSError(5, "Input/output error")))
    with pytest.raises(JobsUnavailable, match="Input/output"):
        await jobs.add(JobRecord(new_id(), REQUEST, 1.0), broken, 5)
    with pytest.raises(JobsUnavailable, match="no room"):
        await jobs.add(JobRecord(new_id(), REQUEST, 1.0), io.BytesIO(b"audio"), 2**40)
    assert await server.query("SELECT 1 FROM asr_jobs") == []
    assert await server.query("SELECT 1 FROM asr_job_chunks") == []


async def test_an_owner_is_charged_for_what_is_kept(jobs, server):
    """The input and the expected result count until the end, then the result."""
    await accepted(jobs, "ann", bytes(9_000))
    claim = await jobs.claim(2.0)
    await jobs.end(claim, claim.record.succeeded(RESULT, 1.0), io.BytesIO(b"words"))
    ((size_bytes, reserved_bytes),) = await server.query("SELECT size_bytes, reserved_bytes FROM asr_jobs")
    assert (5 < size_bytes < 9_000, reserved_bytes) == (True, 0)


async def test_records_that_cannot_be_read_hold_nobody_up(jobs, server):
    """A damaged record is put aside. A newer server's record waits for that server."""
    damaged, newer, whole = [await accepted(jobs) for _ in range(3)]
    await server.query(f"UPDATE asr_jobs SET record = '[]' WHERE id = '{damaged.id}'")
    await server.query(f"UPDATE asr_jobs SET version = 99 WHERE id = '{newer.id}'")
    assert (await jobs.claim(2.0)).id == whole.id
    for identity in (damaged.id, newer.id):
        with pytest.raises(JobsUnavailable):
            await jobs.get(identity, "")
    states = await server.query("SELECT state FROM asr_jobs ORDER BY place")
    assert states == [("unreadable",), ("queued",), ("running",)]
    assert (await jobs.records([damaged.id, newer.id, whole.id])).keys() == {whole.id}


async def test_a_priority_orders_the_jobs_of_one_owner_alone(jobs):
    """Higher priorities come first, and equal ones in order of arrival. Other owners keep their turns."""
    names, taken = {}, []
    for priority, of_them in ((JobPriority.LOW, "d1 a1 b1"), (JobPriority.HIGH, "a2 b2 b3 a3 c1")):
        for name in of_them.split():
            names[(await accepted(jobs, name[0], priority=priority)).id] = name
    for _ in names:
        claim = await jobs.claim(2.0)
        taken.append(names[claim.id])
        await jobs.end(claim, claim.record.succeeded(RESULT, 1.0))
    assert taken == ["d1", "a2", "b2", "c1", "a3", "b3", "a1", "b1"]


async def test_one_server_at_a_time_sends_the_request_of_an_ended_job(jobs, server):
    """The earliest due one of an owner who is not busy. Another server may claim it after the time of an attempt."""
    for owner in ("ann", "ben"):
        await accepted(jobs, owner, follow_up=FollowUp("callback_url", "https://a.test/"))
        claim = await jobs.claim(time.time())
        await jobs.end(claim, claim.record.succeeded(RESULT, 1.0))
    first = await jobs.claim_follow_up(NOBODY)
    assert (first.record.owner, first.record.state) == ("ann", RecordState.SUCCEEDED)
    assert await jobs.claim_follow_up("ben") is None
    assert (await jobs.claim_follow_up(NOBODY)).record.owner == "ben"
    assert await jobs.claim_follow_up(NOBODY) is None
    await server.pass_time(store.ATTEMPT_LEASE_S + 1)
    again = await jobs.claim_follow_up("ben")
    assert again.id == first.id
    with pytest.raises(ClaimLost):
        await jobs.keep_follow_up(first, first.record, 0.0)
    tried = replace(again.record, follow_up=replace(again.record.follow_up, attempts=1))
    await jobs.keep_follow_up(again, tried, 5.0)
    assert await jobs.claim_follow_up("ben") is None
    await server.pass_time(6.0)
    last = await jobs.claim_follow_up("ben")
    assert last.record.follow_up.attempts == 1
    await jobs.keep_follow_up(last, last.record, None)
    await server.pass_time(TTL_S / 2)
    assert await jobs.claim_follow_up("ben") is None


async def test_after_an_outage_nothing_is_taken_over_at_once(jobs, server):
    """Servers that still run jobs have time to renew their claims."""
    other = JobStore(jobs.database, limits(), RECORDS, LEASE_S)
    await accepted(jobs)
    lost = await jobs.claim(2.0)
    await server.pass_time(LEASE_S + 1)
    kind = type(jobs.database)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "steady_s", LEASE_S / 2)
        assert await other.claim(3.0) is None
        patched.setattr(kind, "steady_s", 2 * LEASE_S)
        assert (await other.claim(3.0)).id == lost.id
