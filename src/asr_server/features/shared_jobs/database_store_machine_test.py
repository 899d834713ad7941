"""Jobs that servers share against a simple model: any order of new jobs, claims, losses, removals and passing time.

Promised are: a job is run by one server at a time, and whoever has lost it writes nothing more, however late; owners
take turns; a job that a server gave back or lost is there for the next one; and what is over its time is gone.
"""

import asyncio
import io
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asr_server.core.errors import InvalidAudio
from asr_server.features.shared_jobs.conftest import SqliteDatabase, SqliteServer
from asr_server.features.shared_jobs.database_store import DatabaseStore
from asr_server.features.shared_jobs.database_store_test import RECORDS, REQUEST, RESULT, content
from asr_server.jobs.record import JobRecord, RecordState, new_id
from asr_server.jobs.store import AT_ONCE_EACH, ClaimLost

# No sum of the times that pass comes near either.
LEASE_S, TTL_S = 60.0, 110.0
TIMES_S = st.sampled_from([25.0, 70.0])
PICKS, SERVERS = st.integers(0, 99), st.integers(0, 1)
OWNERS = ("ann", "ben", "cem")


@dataclass
class _Job:
    """What the model knows of a job. `number`: of its last claim."""

    owner: str
    state: str = "arriving"
    number: int = 0
    lost: int = 0
    until_s: float = 0.0  # of the lease, and of a result
    result: bytes = b""


class SharedJobsMachine(RuleBasedStateMachine):
    """Two servers over one database, which may stop without a word and go on later."""

    def __init__(self):
        super().__init__()
        self.server = SqliteServer()
        self.store = DatabaseStore(SqliteDatabase(self.server), LEASE_S, RECORDS)
        self.loop = asyncio.new_event_loop()
        self.jobs = {}  # by id, in the order in which they came
        self.turns = dict.fromkeys(OWNERS, 0)
        self.arriving = []
        self.running = [{}, {}]  # what each server believes that it runs
        self.claims = []  # every claim that anybody ever had

    def _do(self, work):
        return self.loop.run_until_complete(work)

    def _is_current(self, claim, *states):
        job = self.jobs.get(claim.id)
        return job is not None and job.number == claim.number and job.state in states

    def _written(self, work, claim, *states):
        """Only the last claim may write."""
        if self._is_current(claim, *states):
            self._do(work)
            self.jobs[claim.id].until_s = self.server.now_s + LEASE_S
            return True
        with pytest.raises(ClaimLost):
            self._do(work)
        return False

    def _forget(self, identity):
        for running in self.running:
            running.pop(identity, None)

    @rule(owner=st.sampled_from(OWNERS), whole=st.sampled_from([True, True, True, False]))
    def add(self, owner, whole):
        """A job comes, whole or in part."""
        record = JobRecord(new_id(), REQUEST, 1.0, owner=owner)
        taken = self._do(self.store.add(record, 5, lambda shares: None))
        self.jobs[record.id] = _Job(owner, until_s=self.server.now_s + LEASE_S)
        self.arriving.append(taken)
        if whole:
            self.accept(len(self.arriving) - 1)

    @rule(pick=PICKS)
    def accept(self, pick):
        """The rest of it comes, perhaps too late."""
        if self.arriving:
            taken = self.arriving.pop(pick % len(self.arriving))
            if self._written(self.store.accept(taken), taken, "arriving"):
                self.jobs[taken.id].state = "queued"

    @rule(at=SERVERS)
    def claim(self, at):
        """A server asks for the next job: it is that of whose turn it is, and nobody else runs it."""
        running = self.running[at]
        claim = self._do(self.store.claim([one.record for one in running.values()], 2.0, take_over=True))
        expected = self._next(running)
        assert (claim and claim.id) == expected
        if claim is not None:
            job = self.jobs[claim.id]
            job.lost += job.state == "running"
            job.state, job.number, job.until_s = "running", job.number + 1, self.server.now_s + LEASE_S
            self.turns[job.owner] = max(self.turns.values()) + 1
            assert (claim.number, claim.lost, claim.record.owner) == (job.number, job.lost, job.owner)
            running[claim.id] = claim
            self.claims.append(claim)

    def _next(self, mine):
        """The id of the job that a server has to get; None if none waits for it."""
        mine_of = [
            self.jobs[identity].owner if identity in self.jobs else claim.record.owner
            for identity, claim in mine.items()
        ]
        under_way = [job.owner for job in self.jobs.values() if job.state == "running" and not self._is_over(job)]
        waiting = [
            (under_way.count(job.owner), self.turns[job.owner], place, identity)
            for place, (identity, job) in enumerate(self.jobs.items())
            if (job.state == "queued" or (job.state == "running" and self._is_over(job)))
            and identity not in mine
            and mine_of.count(job.owner) < AT_ONCE_EACH
        ]
        return min(waiting)[-1] if waiting else None

    def _is_over(self, job):
        return job.until_s < self.server.now_s

    def _picked(self, pick):
        return self.claims[pick % len(self.claims)] if self.claims else None

    @rule(pick=PICKS)
    def renew(self, pick):
        """Whoever has, or had, a claim renews it."""
        if (claim := self._picked(pick)) and not self._written(self.store.renew(claim), claim, "running"):
            self._forget_claim(claim)

    @rule(pick=PICKS)
    def write(self, pick):
        """The same with a file."""
        if claim := self._picked(pick):
            words = f"{claim.number}".encode()
            if self._written(self.store.write(claim, "result", io.BytesIO(words)), claim, "running"):
                self.jobs[claim.id].result = words

    @rule(pick=PICKS, lost=st.booleans())
    def release(self, pick, lost):
        """A server stops, however late, and gives back what it ran."""
        if claim := self._picked(pick):
            if self._written(self.store.release(claim, lost=lost), claim, "running"):
                job = self.jobs[claim.id]
                job.state, job.lost = "queued", job.lost + lost
            self._forget_claim(claim)

    @rule(pick=PICKS, succeeds=st.booleans())
    def end(self, pick, succeeds):
        """A job is done, as its server believes."""
        if claim := self._picked(pick):
            record = claim.record.succeeded(RESULT, 1.0) if succeeds else claim.record.failed(InvalidAudio("no"))
            if self._written(self.store.end(claim, record, TTL_S), claim, "running"):
                job = self.jobs[claim.id]
                job.state, job.until_s = "over", self.server.now_s + TTL_S
                job.result = job.result if succeeds else b""
            self._forget_claim(claim)

    def _forget_claim(self, claim):
        for running in self.running:
            if running.get(claim.id) is claim:
                del running[claim.id]

    @rule(at=SERVERS)
    def crash(self, at):
        """A server is gone with all that it ran, or stands still and comes back later."""
        self.running[at] = {}

    @rule(pick=PICKS)
    def remove(self, pick):
        """Its owner removes a job, whatever is done with it."""
        if self.jobs:
            identity = list(self.jobs)[pick % len(self.jobs)]
            job = self.jobs.pop(identity)
            assert self._do(self.store.remove(identity, job.owner))

    @rule(seconds=TIMES_S)
    def wait(self, seconds):
        """Time passes for everybody."""
        self.server.now_s += seconds

    @rule()
    def sweep(self):
        """Jobs past their time are removed."""
        self._do(self.store.sweep())
        over = [name for name, job in self.jobs.items() if job.state in ("arriving", "over") and self._is_over(job)]
        for identity in over:
            del self.jobs[identity]

    @invariant()
    def all_is_as_the_model_says(self):
        """Jobs, their results and what owners are charged for; nothing is left of the others."""
        shares = self._do(self.store.shares())
        for owner in OWNERS:
            unfinished = [job for job in self.jobs.values() if job.owner == owner and job.state != "over"]
            assert shares.unfinished[owner] == len(unfinished)
        for identity, job in self.jobs.items():
            record = self._do(self.store.get(identity, job.owner))
            assert (record is None) == (job.state == "arriving")
            assert record is None or record.state.over == (job.state == "over")
            assert record is None or (record.state is RecordState.RUNNING) == (job.state == "running")
            assert self._do(content(self.store, identity, "result")) == job.result
        assert set(self.server.query("SELECT DISTINCT job FROM asr_job_chunks")) <= self.jobs.keys()

    def teardown(self):
        self.loop.close()
        self.server.close()


TestSharedJobs = SharedJobsMachine.TestCase
TestSharedJobs.settings = settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)
