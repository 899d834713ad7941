"""Live work and recordings on one engine thread, in virtual time: a batch whose steps cost what a small CPU's do.

The costs are the 0.6B's with int8 weights on two cores: a decode step takes 37 ms alone and 76 ms for eight rows, and a
span of 30 s 6.2 s in all, so its prompt of 500 tokens takes 2.3 s next to an answer of 105 (docs/log). A partial
has what was said in the last seconds, and most of its answer comes true as a draft.
"""

import pytest

from asr_server.schedule.job import RECORDINGS_SHARE, Job, Priority
from asr_server.schedule.model import RowDelta, RowDone
from asr_server.schedule.thread import LIVE_BEGIN_S, EngineThread

PASS_S, ROW_S, TOKENS_PER_S = 0.031, 0.0056, 217.0
SPAN, PARTIAL = (500, 105), (70, 3)


class Machine:
    """A batch of a number of slots, and its clock. An item is the tokens of its prompt and of its answer.

    A step decodes, then prefills in one pass what fits into its time: prompts in parts, those of urgent rows first.
    """

    loaded, begin_s = True, None

    def __init__(self, slots=8):
        self.slots, self.now_s = slots, 100.0
        self.rows = {}  # by key: the tokens left of the prompt and of the answer, and the urgency
        self.spent_s = {True: 0.0, False: 0.0}  # of live work and of recordings, which share passes by their rows

    def __call__(self):
        return self.now_s

    @property
    def urgent_slots(self):
        return self._slots_beside(prompt for prompt, _, urgent in self.rows.values() if urgent)

    @property
    def free_slots(self):
        return self._slots_beside(prompt for prompt, _, _ in self.rows.values())

    def _slots_beside(self, waiting):
        return 0 if sum(waiting) >= self._tokens() else self.slots - len(self.rows)

    def _tokens(self):
        return max(1, int((3.0 if self.begin_s is None else self.begin_s) * TOKENS_PER_S))

    def load(self): ...

    def unload(self): ...

    def admit(self, key, item, urgent=False):
        self.rows[key] = [*item, urgent]

    def step(self, begin_s=None):
        self.begin_s = begin_s
        begun = {key: urgent for key, (prompt, _, urgent) in self.rows.items() if not prompt}
        if begun:
            self._spend(PASS_S + ROW_S * len(begun), [*begun.values()])
            for key in begun:
                yield self._token(key)
        left, parts = self._tokens(), {}
        for key, (prompt, _, _) in sorted(self.rows.items(), key=lambda row: not row[1][2]):
            if part := min(left, prompt):
                parts[key] = part
                left -= part
        if parts:
            tokens = [self.rows[key][2] for key, part in parts.items() for _ in range(part)]
            self._spend(PASS_S + len(tokens) / TOKENS_PER_S, tokens)
            for key, part in parts.items():
                self.rows[key][0] -= part
                if not self.rows[key][0]:
                    yield self._token(key)

    def drop(self, key): ...

    def _spend(self, took_s, whose):
        self.now_s += took_s
        for kind in self.spent_s:
            self.spent_s[kind] += took_s * whose.count(kind) / len(whose)

    def _token(self, key):
        self.rows[key][1] -= 1
        if self.rows[key][1] > 0:
            return RowDelta(key, None)
        del self.rows[key]
        return RowDone(key, None)


class Load:
    """Callers: `live` sessions that ask `pause_s` after each answer, and so many `spans` at any time."""

    def __init__(self, machine, *, live=0, spans=0, pause_s=0.0, spans_of=Priority.BULK, partial=PARTIAL):
        self.machine, self.pause_s, self.spans, self.spans_of, self.partial = machine, pause_s, spans, spans_of, partial
        reserve = machine.slots // 8
        self.thread = EngineThread(machine, idle_timeout_s=0, live_reserve=reserve, clock=machine, start=False)
        self.sessions = [None] * live
        self.asks_at_s = [machine.now_s + pause_s * number / max(1, live) for number in range(live)]
        self.recordings = []
        self.ended = {True: [], False: []}

    def run(self, seconds):
        """Run for that many seconds, a turn at a time."""
        until_s = self.machine.now_s + seconds
        while self.machine.now_s < until_s:
            self._ask()
            before_s = self.machine.now_s
            self.thread.turn()
            if self.machine.now_s == before_s:
                self.machine.now_s += 0.01
        return self

    def _ask(self):
        for number, job in enumerate(self.sessions):
            if job is not None and job.future.done():
                self.ended[True].append(job)
                self.sessions[number], self.asks_at_s[number] = None, job.ended_s + self.pause_s
            if self.sessions[number] is None and self.machine.now_s >= self.asks_at_s[number]:
                self.sessions[number] = Job(self.partial, Priority.PARTIAL)
                self.thread.submit(self.sessions[number])
                # Asked in the middle of a step, it is submitted after it: its wait counts from when it asked.
                self.sessions[number].queued_s = max(self.asks_at_s[number], 100.0)
        self.ended[False] += [job for job in self.recordings if job.future.done()]
        self.recordings = [job for job in self.recordings if not job.future.done()]
        while len(self.recordings) < self.spans:
            self.recordings.append(Job(SPAN, self.spans_of))
            self.thread.submit(self.recordings[-1])


@pytest.mark.parametrize("kind", [Priority.INTERACTIVE, pytest.param(Priority.BULK, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("partial", [PARTIAL, (70, 1), (500, 1), (300, 20)])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_thirty_sessions_that_ask_all_the_time_leave_recordings_a_fifth_of_the_time(kind, partial, slots):
    """Whatever a partial costs; and the sessions have most of it."""
    load = Load(Machine(slots=slots), live=30, spans=16, spans_of=kind, partial=partial).run(100)
    spent_s = load.machine.spent_s
    assert RECORDINGS_SHARE < spent_s[False] / sum(spent_s.values()) < 0.5
    assert all(load.ended.values())


def test_a_speaker_beside_eight_bulk_spans_waits_for_less_than_a_second():
    """The p95 counts; the slowest answer comes within 2 s. Bulk work is at most a tenth slower than by itself."""
    alone, beside = Load(Machine(), spans=8).run(400), Load(Machine(), spans=8, live=1, pause_s=0.5)
    with beside.thread.lease(live=True):
        beside.run(400)
    waits_s = [job.started_s - job.queued_s for job in beside.ended[True]]
    assert len(waits_s) > 150
    assert sorted(waits_s)[int(0.95 * len(waits_s))] < 1.0
    assert max(job.ended_s - job.queued_s for job in beside.ended[True]) < 2.0
    speeds = [len(load.ended[False]) / load.machine.spent_s[False] for load in (beside, alone)]
    assert speeds[0] / speeds[1] > 0.9


def test_without_live_work_steps_are_as_long_as_the_batch_likes():
    """Steps are short while a session is open, or live work waits or runs."""
    limits = []
    machine = Machine()
    step = machine.step
    machine.step = lambda begin_s: (limits.append(begin_s), step(begin_s))[1]
    load = Load(machine, spans=1).run(5)
    began = len(limits)
    with load.thread.lease(live=True):
        load.run(5)
    ended = len(limits)
    load.run(5)
    load.thread.submit(Job(PARTIAL, Priority.FINAL))
    load.thread.turn()
    assert set(limits[:began]) == set(limits[ended:-1]) == {None}
    assert set(limits[began:ended]) == {limits[-1]} == {LIVE_BEGIN_S}
