"""Jobs against a simple model: any order of new jobs, ends, failures, removals, crashes, and clocks that are set wrong.

Promised are: a job that was accepted ends, whatever server runs it; as many run at once as may; a result stays for
`ttl_s` by a clock that nobody sets, and is gone after that; only its owner has it; and a removed job is stopped at once
and stays away, also after a crash.
"""

import asyncio
import io
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asr_server.core.conftest import raises
from asr_server.core.errors import InvalidInput
from asr_server.jobs import database, runner
from asr_server.jobs.conftest import RECORDS, REQUEST, RESULT, FastSqlite, fetched
from asr_server.jobs.record import RecordState
from asr_server.jobs.runner import JobOutcome, JobRunner, RecordingJobs
from asr_server.jobs.store import AT_ONCE, AT_ONCE_EACH, JobLimits, JobStore

TTL_S = 100
PICKS = st.integers(0, 99)
OWNERS = st.sampled_from(["ann", "ben"])


class _Ends:
    """Jobs that wait until the test ends one of them: with a result, or with an error."""

    request_types = RecordingJobs.request_types

    def __init__(self):
        self.waiting = []

    async def process(self, run):
        end = asyncio.get_running_loop().create_future()
        self.waiting.append(end)
        try:
            await end
        finally:
            self.waiting.remove(end)
        return JobOutcome(RESULT, io.BytesIO(b"words"), 9.0)


class JobsMachine(RuleBasedStateMachine):
    """One server after another over the same directory."""

    def __init__(self):
        super().__init__()
        self.patched = pytest.MonkeyPatch()
        self.wall_s, self.clock_s = 1.7e9, 1_000.0
        clock = SimpleNamespace(time=lambda: self.wall_s, monotonic=lambda: self.clock_s)
        for module in (runner, database):
            self.patched.setattr(module, "time", clock)
        self.patched.setattr(runner, "_SWEEP_S", 0.002)
        self.directory = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.owners, self.removed = {}, {}  # of the jobs that there are, and that there were
        self.ended = {}  # id: whether it succeeded, when by the clock that nobody sets, how far the other was ahead
        self._start()

    def _start(self):
        self.ends = _Ends()
        limits = JobLimits(TTL_S, 50, 100)
        store = JobStore(FastSqlite(Path(self.directory.name), TTL_S), limits, RECORDS)
        self.jobs = JobRunner((self.ends,), store)
        self._do(self.jobs.start())
        self._settle()

    def _do(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, 10))

    def _settle(self):
        """Wait until as many jobs run as can, and all that ended are published."""
        unfinished = [job for job in self.owners if job not in self.ended]
        each = {owner: sum(self.owners[job] == owner for job in unfinished) for owner in ("ann", "ben")}
        most = min(AT_ONCE, sum(min(AT_ONCE_EACH, count) for count in each.values()))
        self._until(lambda: len(self.ends.waiting) == most and self.jobs.pending == len(unfinished))

    def _until(self, holds):
        async def wait():
            while not holds():  # noqa: ASYNC110 - threads write
                await asyncio.sleep(0.001)

        self._do(wait())

    def _gone(self, job):
        self.removed[job] = self.owners.pop(job)
        self.ended.pop(job, None)

    @rule(owner=OWNERS)
    def add(self, owner):
        record = self._do(self.jobs.add(REQUEST, io.BytesIO(b"audio"), owner))
        self.owners[record.id] = owner
        self._settle()

    @rule()
    def fill(self):
        """Two owners have more jobs than may run at once."""
        for owner in ("ann", "ben", "ann", "ben") if len(self.owners) < 4 else ():
            self.add(owner)

    # Ids are random, so which jobs run is another matter each time: the rules have no preconditions that depend on it,
    # or the same example would not draw the same rules again.
    @rule(pick=PICKS, succeeds=st.booleans())
    def end(self, pick, succeeds):
        """A job that runs ends."""
        if not self.ends.waiting:
            return
        end = self.ends.waiting[pick % len(self.ends.waiting)]
        end.set_result(None) if succeeds else end.set_exception(InvalidInput("no audio", code="invalid_audio"))
        before = self.jobs.pending
        self._until(lambda: self.jobs.pending < before)
        for job in self.owners.keys() - self.ended.keys():
            if (state := self._do(self.jobs.get(job, self.owners[job])).state).over:
                assert (state is RecordState.SUCCEEDED) is succeeds
                self.ended[job] = (succeeds, self.clock_s, self.wall_s - self.clock_s)
        self._settle()

    @rule(pick=PICKS)
    def remove(self, pick):
        """Its owner removes a job, whatever it is doing."""
        if not self.owners:
            return
        job = list(self.owners)[pick % len(self.owners)]
        self._do(self.jobs.remove(job, self.owners[job]))
        self._gone(job)
        self._settle()

    @rule()
    def crash(self):
        """The server ends in the middle of its work, and the next one begins."""
        self._do(self.jobs.close())
        began_s = self.clock_s
        self._start()
        # A start has the clock of the machine alone. Where it was set, a result stays for at most `ttl_s` more.
        for job, (succeeded, _, offset_s) in self.ended.items():
            if offset_s != self.wall_s - self.clock_s:
                self.ended[job] = (succeeded, began_s, None)

    @rule(seconds=st.sampled_from([-(10**9), -1_000, 1_000, 10**9]))
    def set_clock(self, seconds):
        self.wall_s += seconds

    @rule(seconds=st.sampled_from([30, TTL_S + 1]))
    def wait(self, seconds):
        """Time passes, and what is over its time goes."""
        self.clock_s += seconds
        self.wall_s += seconds
        for job in [job for job, (_, at_s, _) in self.ended.items() if self.clock_s > at_s + TTL_S]:
            self._gone(job)
        self._until(lambda: self.jobs.counts.total() <= len(self.owners))

    @invariant()
    def all_is_as_the_model_says(self):
        """Jobs have their state and result, for their owner alone; removed ones are gone, from the disk too."""
        for job in list(self.owners):
            may_be_gone = job in self.ended and self.ended[job][2] is None
            with suppress(InvalidInput) if may_be_gone else nullcontext():
                self._check(job)
        for job, owner in self.removed.items():
            with raises("job_not_found"):
                self._do(self.jobs.get(job, owner))
        left = {path.name.partition(".")[0] for path in Path(self.directory.name, "jobs").iterdir()}
        assert not self.removed.keys() & left

    def _check(self, job):
        owner, other = self.owners[job], "ben" if self.owners[job] == "ann" else "ann"
        with raises("job_not_found"):
            self._do(self.jobs.get(job, other))
        state = self._do(self.jobs.get(job, owner)).state
        assert state.over == (job in self.ended)
        if state is RecordState.SUCCEEDED:
            assert self._do(fetched(self.jobs, job, owner)).content == b"words"
        else:
            with raises("job_not_finished"):
                self._do(self.jobs.result(job, owner))

    def teardown(self):
        """All that was accepted ends."""
        while self.ends.waiting:
            self.end(0, True)
        assert self.jobs.pending == 0
        self._do(self.jobs.close())
        self.loop.close()
        self.patched.undo()
        self.directory.cleanup()


TestJobs = pytest.mark.slow("runs many jobs to their ends")(JobsMachine.TestCase)
# What fails often waits for what never comes, so that a smaller example would take minutes to find.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TestJobs.settings = settings(max_examples=60, stateful_step_count=20, deadline=None, derandomize=True, phases=_PHASES)
