"""Runs jobs in any order of events on two servers, and compares the store with a simple model.

One server at a time runs a job. A server that lost a job writes nothing more, however late. Owners take turns. Another
server can claim a job that was released or lost. Expired jobs are removed.
"""

import asyncio
import io
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asr_server.core.errors import InvalidInput
from asr_server.jobs.conftest import RECORDS, REQUEST, RESULT, SqliteServer
from asr_server.jobs.record import JobRecord, RecordState, new_id
from asr_server.jobs.store import AT_ONCE_EACH, ClaimLost, JobLimits, JobStore
from asr_server.jobs.store_test import LEASE_S, TTL_S, content

# No sum of the times that pass comes near those of leases and of results.
TIMES_S = st.sampled_from([25.0, 70.0])
PICKS, SERVERS = st.integers(0, 99), st.integers(0, 1)
WRITES = st.sampled_from([("renew",), ("release", True), ("end", True)])
OWNERS = ("ann", "ben", "cem")
STORED = "SELECT id, state, '' AS file FROM asr_jobs UNION SELECT job, '', file FROM asr_job_chunks"


@dataclass
class _Job:
    """A job in the model. `number`: the number of its last claim."""

    owner: str
    state: str = "queued"
    number: int = 0
    lost: int = 0
    until_s: float = 0.0  # of the lease, and of a result
    server: int = -1
    result: bytes = b""


class StoreMachine(RuleBasedStateMachine):
    """Two servers with one database. Either may stop without notice and continue later."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = tempfile.TemporaryDirectory()
        self.server, self.now_s = self._database(Path(self.directory.name)), 0.0
        limits = JobLimits(TTL_S, 50, 10_000)
        self.stores = [JobStore(self.server.connect(), limits, RECORDS, LEASE_S) for _ in range(2)]
        for store in self.stores:
            self._do(store.database.prepare())
        self.jobs = {}  # by id, in the order in which they came
        self.turns = dict.fromkeys(OWNERS, 0)
        self.claims = []  # every claim that anybody ever had, with its server
        self.seen = {}  # the jobs as they were when their owners last looked

    def _database(self, directory):
        return SqliteServer(directory)

    def _do(self, work):
        return self.loop.run_until_complete(work)

    def _written(self, work, claim):
        """Return the result of a write, which only the last claim may make."""
        job = self.jobs.get(claim.id)
        if job is not None and job.number == claim.number and job.state == "running":
            self._do(work)
            job.until_s = self.now_s + LEASE_S
            return job
        with pytest.raises(ClaimLost):
            self._do(work)
        return None

    @rule(owner=st.sampled_from(OWNERS), at=SERVERS)
    def add(self, owner, at):
        record = JobRecord(new_id(), REQUEST, 1.0, owner=owner)
        self._do(self.stores[at].add(record, io.BytesIO(b"audio"), 5))
        self.jobs[record.id] = _Job(owner)

    @rule(owners=st.lists(st.sampled_from(OWNERS), min_size=3, max_size=6), at=SERVERS)
    def crowd(self, owners, at):
        """Accept jobs of several owners, and claim some."""
        for owner in owners:
            self.add(owner, at)
        for server in (at, at, 1 - at, at):
            self.claim(server)

    @rule(at=SERVERS)
    def claim(self, at):
        """Claim the next job. Check that its owner's turn has come and that nobody else runs it."""
        claim = self._do(self.stores[at].claim(2.0))
        assert (claim and claim.id) == self._next(at)
        if claim is not None:
            job = self.jobs[claim.id]
            job.lost += job.state == "running"
            assert claim.number > job.number
            job.state, job.number, job.server = "running", claim.number, at
            job.until_s = self.now_s + LEASE_S
            self.turns[job.owner] = max(self.turns.values()) + 1
            assert (claim.lost, claim.record.owner) == (job.lost, job.owner)
            self.claims.append((claim, at))

    def _next(self, at):
        """Return the id of the job that a server has to get, None if no job waits for it."""
        running = [job for job in self.jobs.values() if job.state == "running"]
        mine = [job.owner for job in running if job.server == at]
        under_way = [job.owner for job in running if job.server == at or not self._is_over(job)]
        waiting = [
            (under_way.count(job.owner), self.turns[job.owner], place, identity)
            for place, (identity, job) in enumerate(self.jobs.items())
            if (job.state == "queued" or (job.state == "running" and self._is_over(job) and job.server != at))
            and mine.count(job.owner) < AT_ONCE_EACH
        ]
        return min(waiting)[-1] if waiting else None

    def _is_over(self, job):
        return job.until_s < self.now_s

    def _picked(self, pick):
        claim, at = self.claims[pick % len(self.claims)] if self.claims else (None, 0)
        return claim, self.stores[at]

    @rule(pick=PICKS)
    def renew(self, pick):
        claim, store = self._picked(pick)
        if claim:
            self._written(store.renew(claim), claim)

    @rule(pick=PICKS, lost=st.booleans())
    def release(self, pick, lost):
        claim, store = self._picked(pick)
        if claim and (job := self._written(store.release(claim, lost=lost), claim)):
            job.state, job.lost, job.server = "queued", job.lost + lost, -1

    @rule(pick=PICKS, succeeds=st.booleans())
    def end(self, pick, succeeds):
        """End a job with a result, under a claim that may be lost."""
        claim, store = self._picked(pick)
        if claim is None:
            return
        words = f"{claim.number}".encode() if succeeds else b""
        record = claim.record.succeeded(RESULT, 1.0) if succeeds else claim.record.failed(InvalidInput("no"))
        if job := self._written(store.end(claim, record, io.BytesIO(words) if succeeds else None), claim):
            self._ended(job)
            job.result = words

    @rule(pick=PICKS, at=SERVERS)
    def cancel(self, pick, at):
        """Cancel a job at any server, as its owner."""
        if self.jobs:
            identity = list(self.jobs)[pick % len(self.jobs)]
            job, store = self.jobs[identity], self.stores[at]
            ended = replace(self._do(store.get(identity, job.owner)), state=RecordState.CANCELLED)
            assert not self._do(store.cancel(replace(ended, owner="somebody else")))
            assert self._do(store.cancel(ended)) == (job.state != "over")
            if job.state != "over":
                self._ended(job)

    def _ended(self, job):
        job.state, job.until_s, job.server = "over", self.now_s + TTL_S, -1

    @rule(pick=PICKS, at=SERVERS)
    def remove(self, pick, at):
        if self.jobs:
            identity = list(self.jobs)[pick % len(self.jobs)]
            owner = self.jobs.pop(identity).owner
            assert not self._do(self.stores[at].remove(identity, f"not {owner}"))
            assert self._do(self.stores[at].remove(identity, owner))

    @rule(seconds=TIMES_S)
    def wait(self, seconds):
        self.now_s += seconds
        self._do(self.server.pass_time(seconds))

    @rule(owner=st.sampled_from(OWNERS), at=SERVERS, late=WRITES)
    def lose(self, owner, at, late):
        """Let a lease end, let another server claim the job, and let the first server continue."""
        self.add(owner, at)
        taken = len(self.claims)
        self.claim(at)
        self.wait(LEASE_S + 10)
        self.claim(at)
        self.claim(1 - at)
        if len(self.claims) > taken:
            write, *how = late
            getattr(self, write)(taken, *how)

    @rule(at=SERVERS)
    def expire(self, at):
        self._do(self.stores[at].expire())
        for identity in [name for name, job in self.jobs.items() if job.state == "over" and self._is_over(job)]:
            del self.jobs[identity]

    @invariant()
    def all_is_as_the_model_says(self):
        """Compare states and files with the model. Nothing else may be stored. Owners look at changed jobs."""
        rows = self._do(self.server.query(STORED))
        states = {identity: "over" if RecordState(state).over else state for identity, state, _ in rows if state}
        assert states == {identity: job.state for identity, job in self.jobs.items()}
        files = {tuple(path.name.split(".")) for path in Path(self.directory.name).glob("jobs/*")}
        files |= {(identity, file) for identity, _, file in rows if file}
        assert files == {
            (identity, "recording" if job.state != "over" else "result")
            for identity, job in self.jobs.items()
            if job.state != "over" or job.result
        }
        for identity, job in self.jobs.items():
            if self.seen.get(identity) != job:
                self._look_at(identity, job)
                self.seen[identity] = replace(job)

    def _look_at(self, identity, job):
        assert self._do(self.stores[0].get(identity, f"not {job.owner}")) is None
        record = self._do(self.stores[0].get(identity, job.owner))
        assert record.state.over == (job.state == "over")
        assert (record.state is RecordState.RUNNING) == (job.state == "running")
        assert self._do(content(self.stores[0], identity)) == job.result
        assert bool(self._do(content(self.stores[0], identity, "recording"))) == (job.state != "over")

    def teardown(self):
        unfinished = self._do(self.stores[0].unfinished())
        for owner in OWNERS:
            assert unfinished[owner] == sum(job.owner == owner and job.state != "over" for job in self.jobs.values())
        for identity, job in self.jobs.items():
            self._look_at(identity, job)
        for store in self.stores:
            self._do(store.database.close())
        self._do(self.server.close())
        self.loop.close()
        self.directory.cleanup()


# To find a smaller example would take minutes.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


@pytest.mark.slow("compares jobs of two servers with a model after every step")
class TestStore(StoreMachine.TestCase):
    """The rules with SQLite."""

    settings = settings(max_examples=120, stateful_step_count=30, deadline=None, derandomize=True, phases=PHASES)
