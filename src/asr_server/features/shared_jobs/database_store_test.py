"""Jobs in a database that servers share: claims, shares, files and times. `conftest.py` has the database, and
E2Etest/shared_jobs runs the same tests on PostgreSQL."""

import io
import time
from dataclasses import replace

import pytest

from asr_server.core.errors import JobsUnavailable, Overloaded
from asr_server.features.shared_jobs import database_store
from asr_server.features.shared_jobs.database_store import DatabaseStore
from asr_server.jobs.record import (
    FollowUp,
    FollowUpState,
    JobPriority,
    JobRecord,
    RecordFormat,
    RecordState,
    id_of,
    new_id,
)
from asr_server.jobs.runner import RecordingJobs
from asr_server.jobs.store import ClaimLost
from asr_server.recordings.requests import Result, TranscriptionRequest

REQUEST = TranscriptionRequest()
RESULT = Result(b"", "text/plain", file_name="subtitles.srt", time_source="mixed")
LEASE_S = 60.0
RECORDS = RecordFormat(RecordingJobs.request_types)


@pytest.fixture
async def store(connect):
    """With claims that are over at once."""
    made = DatabaseStore(connect(), 0.0, RECORDS)
    yield made
    await made.database.close()


@pytest.fixture
def keeping(store):
    """Make a store whose claims last."""
    return DatabaseStore(store.database, LEASE_S, RECORDS)


async def accepted(store, owner="", recording=b"audio", priority=JobPriority.NORMAL):
    """A job that waits."""
    record = JobRecord(new_id(), REQUEST, 1.0, owner=owner, priority=priority)
    taken = await store.add(record, len(recording), lambda shares: None)
    await store.write(taken, "recording", io.BytesIO(recording))
    await store.accept(taken)
    return taken


async def content(store, identity, file):
    return b"".join([chunk async for chunk in store.read(identity, file)])


async def test_an_id_that_follows_from_a_key_has_one_job(store):
    """A second server is refused while the job arrives and afterwards."""
    record = JobRecord(id_of("", "k"), REQUEST, 1.0)
    taken = await store.add(record, 5, lambda shares: None)
    with pytest.raises(Overloaded):
        await store.add(record, 5, lambda shares: None)
    await store.write(taken, "recording", io.BytesIO(b"audio"))
    await store.accept(taken)
    with pytest.raises(Overloaded):
        await store.add(record, 5, lambda shares: None)
    assert (await store.get(record.id, "")).id == record.id


async def test_who_lost_the_claim_writes_nothing(store):
    """Neither chunks, nor parts, nor progress, nor an end, and it gives no job back: all of these name an old claim."""
    taken = await store.add(JobRecord(new_id(), REQUEST, 1.0), 5, lambda shares: None)
    await store.write(taken, "recording", io.BytesIO(b"audio"))
    await store.accept(taken)
    old = await store.claim([], 2.0, take_over=True)
    await store.write(old, "result", io.BytesIO(b"old"))
    new = await store.claim([], 3.0, take_over=True)
    assert (new.id, new.number, new.lost) == (old.id, old.number + 1, 1)
    await store.write(new, "result", io.BytesIO(b"new"))
    ended = old.record.succeeded(RESULT, 1.0)
    for late in (
        store.write(old, "result", io.BytesIO(b"late")),
        store.keep_part(old, 0, "key", io.BytesIO(b"late")),
        store.cut_parts(old, 0),
        store.renew(old),
        store.release(old, lost=False),
        store.end(old, ended, 100),
        store.accept(taken),
    ):
        with pytest.raises(ClaimLost):
            await late
    assert await content(store, new.id, "result") == b"new"
    assert await store.parts(new.id) == []
    assert (await store.get(new.id, "")).state is RecordState.RUNNING
    await store.end(new, new.record.succeeded(RESULT, 1.0), 100)
    for late in (store.renew(new), store.release(new, lost=True), store.write(new, "result", io.BytesIO(b"late"))):
        with pytest.raises(ClaimLost):
            await late
    assert (await store.get(new.id, "")).started_at == 3.0


async def test_a_server_does_not_take_over_what_it_runs(store):
    """A server that was late with renewing leaves the job to others."""
    await accepted(store)
    runs = await store.claim([], 2.0, take_over=True)
    assert await store.claim([runs.record], 3.0, take_over=True) is None
    assert await store.claim([], 3.0, take_over=False) is None
    assert (await store.claim([], 3.0, take_over=True)).id == runs.id


async def test_a_claim_that_is_renewed_is_nobody_elses(keeping, store, pass_time):
    """Each write renews it too. The record that was renewed is what everybody sees."""
    await accepted(keeping)
    claim = await keeping.claim([], 2.0, take_over=True)
    renewing = DatabaseStore(store.database, LEASE_S, RECORDS)
    for write in (renewing.renew, lambda claim: renewing.write(claim, "result", io.BytesIO(b"words"))):
        await store.renew(claim)  # which is over at once
        await write(claim)
        assert await keeping.claim([], 3.0, take_over=True) is None
    assert (await keeping.records([claim.id]))[claim.id] == claim.record


async def test_owners_take_turns_over_all_servers(keeping):
    """Each server asks with nothing under way: the next job is of who has fewer under way, then of whose turn it is."""
    for owner in ("ann", "ann", "ann", "ann", "ben", "ben", "ben"):
        await accepted(keeping, owner)
    claims = [await keeping.claim([], 2.0, take_over=True) for _ in range(4)]
    assert [claim.record.owner for claim in claims] == ["ann", "ben", "ann", "ben"]
    await keeping.end(claims[1], claims[1].record.succeeded(RESULT, 1.0), 100)
    claims = [await keeping.claim([], 2.0, take_over=True) for _ in range(3)]
    assert [claim.record.owner for claim in claims] == ["ben", "ann", "ann"]
    assert await keeping.claim([], 2.0, take_over=True) is None


async def test_jobs_of_a_server_that_is_gone_are_not_under_way(keeping, store):
    """Their owner has its turn as if it had none."""
    for owner in ("ben", "ann", "ann", "ben"):
        await accepted(keeping, owner)
    claims = [await each.claim([], 2.0, take_over=False) for each in (keeping, store, keeping)]
    assert [claim.record.owner for claim in claims] == ["ben", "ann", "ann"]


async def test_what_is_given_back_waits_with_all_its_losses(keeping):
    """It is the job that it was before it ran. How often servers failed on it is counted; that one stopped is not."""
    taken = await accepted(keeping)
    for lost, losses in ((True, 0), (False, 1), (True, 1), (False, 2)):
        claim = await keeping.claim([], 7.0, take_over=False)
        assert (claim.id, claim.lost, claim.record.started_at) == (taken.id, losses, 7.0)
        await keeping.release(claim, lost=lost)
        waiting = await keeping.get(taken.id, "")
        assert (waiting.state, waiting.started_at) == (RecordState.QUEUED, 0.0)


async def test_what_arrives_is_no_job_and_has_its_place(keeping):
    """Nobody sees it or runs it, and it counts for its owner from the first byte on."""
    seen = []
    taken = await keeping.add(JobRecord(new_id(), REQUEST, 1.0, owner="ann"), 70, seen.append)
    await keeping.add(JobRecord(new_id(), REQUEST, 1.0, owner="ann"), 7, seen.append)
    assert (seen[0].unfinished, seen[1].unfinished["ann"], seen[1].size_bytes["ann"]) == ({}, 1, 70)
    assert await keeping.get(taken.id, "ann") is None
    assert await keeping.claim([], 2.0, take_over=True) is None
    assert not +(await keeping.counts())
    await keeping.accept(taken)
    assert +(await keeping.counts()) == {RecordState.QUEUED: 1}
    shares = await keeping.shares()
    assert (shares.unfinished["ann"], shares.size_bytes["ann"]) == (2, 77)


async def test_what_is_refused_leaves_nothing(keeping):
    """Where there is no room, the place is not taken."""

    def refuse(shares):
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        await keeping.add(JobRecord(new_id(), REQUEST, 1.0, owner="ann"), 70, refuse)
    assert not (await keeping.shares()).unfinished


async def test_an_end_leaves_the_result_alone(keeping):
    """Recording, clips and parts are gone; the owner is charged for the result, and for no unfinished job."""
    taken = await accepted(keeping, "ann", bytes(9_000))
    claim = await keeping.claim([], 2.0, take_over=True)
    await keeping.write(claim, "clip-0", io.BytesIO(b"voice"))
    await keeping.keep_part(claim, 0, "first", io.BytesIO(b"part"))
    await keeping.write(claim, "result", io.BytesIO(b"words"))
    await keeping.end(claim, claim.record.succeeded(RESULT, 1.0), 100)
    assert [await content(keeping, taken.id, file) for file in ("recording", "clip-0", "result")] == [
        b"",
        b"",
        b"words",
    ]
    assert await keeping.parts(taken.id) == []
    shares = await keeping.shares()
    assert (shares.unfinished["ann"], shares.size_bytes["ann"]) == (0, 5 + database_store._ROW_BYTES)


async def test_a_failed_job_keeps_no_file(keeping):
    """Also no result that was stored before it failed."""
    taken = await accepted(keeping)
    claim = await keeping.claim([], 2.0, take_over=True)
    await keeping.write(claim, "result", io.BytesIO(b"words"))
    await keeping.end(claim, claim.record.failed(JobsUnavailable("no")), 100)
    assert await content(keeping, taken.id, "result") == b""
    assert (await keeping.get(taken.id, "")).state is RecordState.FAILED


async def test_files_are_stored_in_chunks_and_replaced_as_a_whole(keeping, monkeypatch):
    """A shorter file in the place of a longer one has none of its end."""
    monkeypatch.setattr(database_store, "_CHUNK_BYTES", 4)
    taken = await keeping.add(JobRecord(new_id(), REQUEST, 1.0), 5, lambda shares: None)
    source = io.BytesIO(b"0123456789")
    source.read(3)  # it is read from its beginning, wherever it is
    assert await keeping.write(taken, "recording", source) == 10
    assert [chunk async for chunk in keeping.read(taken.id, "recording")] == [b"0123", b"4567", b"89"]
    assert await keeping.size_bytes(taken.id, "recording") == 10
    await keeping.write(taken, "recording", io.BytesIO(b"abcde"))
    assert await content(keeping, taken.id, "recording") == b"abcde"


async def test_parts_of_speech_are_cut_with_their_samples(keeping):
    """A part in the place of an earlier one takes all later ones away."""
    await accepted(keeping)
    claim = await keeping.claim([], 2.0, take_over=True)
    for number, key in enumerate(("a", "b", "c")):
        await keeping.keep_part(claim, number, key, io.BytesIO(key.encode()))
    await keeping.keep_part(claim, 1, "new", io.BytesIO(b"new"))
    assert await keeping.parts(claim.id) == ["a", "new"]
    samples = [b"".join([chunk async for chunk in keeping.part(claim.id, number)]) for number in range(3)]
    assert samples == [b"a", b"new", b""]


async def test_what_is_over_its_time_goes(keeping, pass_time):
    """Results after their time, and uploads that nobody goes on with; what waits or runs stays."""
    ended, waits = await accepted(keeping), await accepted(keeping)
    claim = await keeping.claim([], 2.0, take_over=True)
    await keeping.end(claim, claim.record.succeeded(RESULT, 1.0), 2.0)
    short = DatabaseStore(keeping.database, 1.0, RECORDS)
    runs = await accepted(short, "ben")
    lost = await short.claim([claim.record], 2.0, take_over=True)
    broken = await short.add(JobRecord(new_id(), REQUEST, 1.0), 5, lambda shares: None)
    arriving = await keeping.add(JobRecord(new_id(), REQUEST, 1.0), 5, lambda shares: None)
    await keeping.sweep()
    assert ended.id in await keeping.records([ended.id])
    await pass_time(2.5)
    await keeping.sweep()
    ids = [job.id for job in (ended, waits, runs, broken, arriving)]
    assert lost.id in (waits.id, runs.id)  # whose server is not heard of
    assert (await keeping.records(ids)).keys() == {waits.id, runs.id, arriving.id}
    with pytest.raises(ClaimLost):
        await keeping.accept(broken)


async def test_only_its_owner_sees_and_removes_a_job(keeping):
    """Its files go with it, and whoever runs it has lost it."""
    taken = await accepted(keeping, "ann")
    claim = await keeping.claim([], 2.0, take_over=True)
    assert await keeping.get(taken.id, "ben") is None
    assert await keeping.remove(taken.id, "ben") is False
    assert (await keeping.get(taken.id, "ann")).owner == "ann"
    assert await keeping.remove(taken.id, "ann") is True
    assert await content(keeping, taken.id, "recording") == b""
    with pytest.raises(ClaimLost):
        await keeping.renew(claim)
    assert await keeping.remove(taken.id, "ann") is False


def _with_request(claim, at):
    """The record of a job that succeeded and whose request is due at a time."""
    ended = replace(claim.record, follow_ups=(FollowUp("callback_url", "https://a.test/"),)).succeeded(RESULT, 1.0)
    return ended.ended(at)


async def test_one_server_at_a_time_sends_the_request_of_an_ended_job(keeping, pass_time, monkeypatch):
    """The earliest that is due, of an owner who is not busy; again after the time of an attempt, by a newer claim."""
    monkeypatch.setattr(database_store, "ATTEMPT_LEASE_S", 5.0)
    for owner in ("ann", "ben"):
        await accepted(keeping, owner)
        claim = await keeping.claim([], 2.0, take_over=True)
        await keeping.end(claim, _with_request(claim, time.time()), 100)
    await pass_time(0.1)
    first = await keeping.claim_follow_up([])
    assert (first.record.owner, first.record.state) == ("ann", RecordState.SUCCEEDED)
    assert await keeping.claim_follow_up(["ben"]) is None
    assert (await keeping.claim_follow_up([])).record.owner == "ben"
    assert await keeping.claim_follow_up([]) is None
    await pass_time(6.0)
    again = await keeping.claim_follow_up(["ben"])
    assert again.id == first.id
    with pytest.raises(ClaimLost):
        await keeping.keep_follow_up(first, first.record)
    later = again.record.followed_up(FollowUpState.WAITING, time.time() + 5.0)
    await keeping.keep_follow_up(again, later)
    assert await keeping.claim_follow_up(["ben"]) is None
    await pass_time(6.0)
    last = await keeping.claim_follow_up(["ben"])
    assert last.record.follow_ups[0].attempts == 1
    await keeping.keep_follow_up(last, last.record.followed_up(FollowUpState.DONE, 0.0))
    await pass_time(6.0)
    assert await keeping.claim_follow_up(["ben"]) is None


async def test_who_cancels_a_job_takes_it_from_its_server(keeping):
    """The server that runs it loses its claim; a job of another owner, and one that is over, stay as they are."""
    await accepted(keeping, "ann")
    runs = await keeping.claim([], 2.0, take_over=True)
    assert await keeping.cancel(runs.id, "ben") is None
    claim = await keeping.cancel(runs.id, "ann")
    with pytest.raises(ClaimLost):
        await keeping.renew(runs)
    await keeping.end(claim, claim.record.cancelled().ended(5.0), 100)
    assert (await keeping.get(runs.id, "ann")).state is RecordState.CANCELLED
    assert await keeping.cancel(runs.id, "ann") is None
    assert await content(keeping, runs.id, "recording") == b""
    assert await keeping.claim([], 3.0, take_over=True) is None


async def test_a_priority_orders_the_jobs_of_one_owner_alone(keeping):
    """Higher ones come first, equal ones as they came. Neither a new owner nor one that had a turn is overtaken."""
    low, high = JobPriority.LOW, JobPriority.HIGH
    names = {}
    for owner, name, priority in (
        *(
            ("dan", "d1", low),
            ("ann", "a1", low),
            ("ben", "b1", low),
            ("ann", "a2", high),
            ("ben", "b2", high),
            ("ben", "b3", high),
        ),
        *(("ann", "a3", high), ("cem", "c1", high)),
    ):
        names[(await accepted(keeping, owner, priority=priority)).id] = name
    taken = []
    for _ in names:
        claim = await keeping.claim([], 2.0, take_over=True)
        taken.append(names[claim.id])
        await keeping.end(claim, claim.record.succeeded(RESULT, 1.0), 100)
    assert taken == ["d1", "a2", "b2", "c1", "a3", "b3", "a1", "b1"]
