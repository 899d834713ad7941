"""The supervisor over scripted processes, which listen or not and exit when the test says; its judgement of hangs."""

import asyncio
import signal
import subprocess
import time
from collections import Counter
from itertools import pairwise

import pytest

from asr_server.core.conftest import until
from asr_server.processes import supervisor
from asr_server.processes.supervisor import WELL, Condition, HangDetector, ProcessEnd, Supervised, Supervisor


class _Process:
    """Listens, or never does, or dies at once. Ends at SIGTERM, unless it is stubborn."""

    pid = 4711

    def __init__(self, listener, kind):
        self._listener, self._kind = listener.dup(), kind
        self._code = asyncio.get_running_loop().create_future()
        self._server, self._connections = None, []
        self.began_s, self.signals = time.monotonic(), []

    async def begin(self):
        if self._kind == "dies":
            self._code.set_result(1)
        elif self._kind != "mute":
            self._server = await asyncio.start_unix_server(self._on_connection, sock=self._listener)

    def _on_connection(self, _, writer):
        self._connections.append(writer)
        if self._code.done():
            writer.close()

    async def wait(self):
        return await asyncio.shield(self._code)

    def terminate(self):
        self.signals.append("TERM")
        if self._kind != "stubborn":
            self.end(0)

    def kill(self):
        self.signals.append("KILL")
        self.end(-9)

    def end(self, code):
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.close()
        self._listener.close()
        if not self._code.done():
            self._code.set_result(code)


class _Case:
    """A supervisor and all its processes; `kinds` are what they are, the last one for all that follow."""

    def __init__(self, kinds, **limits):
        self._kinds = list(kinds)
        self.processes, self.used, self.reasons = [], 0, []
        limits = {"start_s": 5.0, "stop_s": 5.0, "idle_s": 0.0, "hang_s": 60.0, **limits}
        self.supervisor = Supervisor(
            Supervised("one", self._spawn, self._use, lambda: WELL, self.reasons.append, **limits)
        )
        self.wanted = asyncio.Event()
        self.run = asyncio.create_task(self.supervisor.run(self.wanted))

    async def _spawn(self, listener):
        kind = self._kinds.pop(0) if len(self._kinds) > 1 else self._kinds[0]
        if kind == "absent":
            raise FileNotFoundError("no such program")
        self.processes.append(_Process(listener, kind))
        await self.processes[-1].begin()
        return self.processes[-1]

    async def _use(self, path):
        reader, writer = await asyncio.open_unix_connection(path)
        self.supervisor.ready()
        self.used += 1
        try:
            await reader.read()
        finally:
            writer.close()

    async def used_by(self, number):
        """Wait until that many processes were used."""
        self.wanted.set()
        await until(lambda: self.used == number)

    def counted(self):
        return +Counter(self.supervisor.ends)


@pytest.fixture
async def supervise(monkeypatch):
    """Makes them, and stops what is left of them."""
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.02)
    made = []

    def make(*kinds, **config):
        made.append(_Case(kinds or ("good",), **config))
        return made[-1]

    yield make
    for one in made:
        one.run.cancel()
        await asyncio.wait([one.run])
        for process in one.processes:
            process.end(0)  # closes its socket


async def test_a_process_starts_when_it_is_wanted_and_after_a_crash_also_if_nobody_asks(supervise):
    """One that nobody wants does not start, also after one was ended on purpose."""
    case = supervise(idle_s=0.05)
    await asyncio.sleep(0.05)
    assert not case.processes
    await case.used_by(1)
    case.wanted.clear()
    case.processes[0].end(-9)
    await until(lambda: case.used == 2)
    await case.supervisor.close_idle()
    await asyncio.sleep(0.05)
    assert len(case.processes) == 2


@pytest.mark.parametrize("kind", ["dies", "absent"])
async def test_a_crash_loop_is_given_up_for_a_while_and_again_after_one_more_crash(supervise, kind, monkeypatch):
    monkeypatch.setattr(supervisor, "GIVE_UP_S", 0.1)
    case = supervise(kind)
    case.wanted.set()
    await until(lambda: len(case.reasons) == 2)
    assert case.reasons == ["The one does not stay up; the log says why."] * 2
    assert case.counted() == {ProcessEnd.CRASHED: 6}
    if kind == "dies":
        begun = [process.began_s for process in case.processes]
        waits_s = [later - earlier for earlier, later in pairwise(begun)]
        assert all(wait_s >= least_s for wait_s, least_s in zip(waits_s, [0, 0.02, 0.04, 0.08, 0.1], strict=True))


@pytest.mark.parametrize("fruit", ["served", "time"])
async def test_a_process_that_was_of_use_makes_up_for_crashes(supervise, fruit, monkeypatch):
    if fruit == "time":
        monkeypatch.setattr(supervisor, "_PRODUCTIVE_S", 0.0)
    case = supervise()
    for number in range(1, 11):
        await case.used_by(number)
        if fruit == "served":
            case.supervisor.served()
        case.processes[-1].end(-9)
    await case.used_by(11)
    assert not case.reasons


@pytest.mark.parametrize(("kind", "signals"), [("good", ["TERM"]), ("stubborn", ["TERM", "KILL"]), ("mute", ["TERM"])])
async def test_closing_ends_the_process(supervise, kind, signals):
    """Also in the middle of its start. SIGTERM first, SIGKILL after the time for it."""
    case = supervise(kind, stop_s=0.05 if kind == "stubborn" else 5.0)
    case.wanted.set()
    await until(lambda: case.processes if kind == "mute" else case.used)
    case.run.cancel()
    await asyncio.wait([case.run])
    assert case.processes[0].signals == signals
    assert len(case.processes) == 1
    assert case.counted() == {ProcessEnd.STOPPED: 1}


async def test_every_end_is_counted_by_its_cause(supervise):
    """One that comes up too late is killed, and followed by others: a crash after a kill is a crash."""
    case = supervise("mute", "good", start_s=0.1)
    await case.used_by(1)
    assert case.processes[0].signals == ["KILL"]
    case.processes[1].end(-9)
    await case.used_by(2)
    case.wanted.clear()
    await case.supervisor.close_idle()
    await until(lambda: case.supervisor.ends[ProcessEnd.STOPPED])
    assert case.counted() == {ProcessEnd.LATE: 1, ProcessEnd.CRASHED: 1, ProcessEnd.STOPPED: 1}


@pytest.fixture
def stopped():
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        yield process.pid
        process.kill()


@pytest.mark.parametrize("kind", ["good", "mute"])
async def test_one_that_is_stopped_is_killed_although_it_may_load_or_start(supervise, kind, stopped):
    case = supervise(kind, "good", start_s=60.0, hang_s=0.05)
    case.wanted.set()
    await until(lambda: case.processes)
    case.processes[0].pid = stopped
    await until(lambda: len(case.processes) == 2)
    assert case.processes[0].signals == ["KILL"]
    assert case.counted() == {ProcessEnd.HUNG: 1}


# -- hangs -----------------------------------------------------------------------------------------------------------

PROBE_S = 8.0
HUNG, LOADING, STOPPED = Condition("hung", 20.0), Condition("silent", 300.0), Condition("stopped", 20.0)


def _killed_after(detector, found, begin_s=0.0):
    now_s = begin_s
    while True:
        now_s += 2.0
        if detector.observe(found, now_s):
            return now_s - begin_s


@pytest.mark.parametrize("before", [WELL, LOADING])
@pytest.mark.parametrize("found", [HUNG, LOADING, STOPPED])
def test_it_hangs_after_the_limit_of_its_condition(before, found):
    """Time in another condition with a longer limit does not count: a short pause during a long load is no hang."""
    detector = HangDetector(PROBE_S, 0.0)
    if before is not found:
        assert not detector.observe(before, PROBE_S)
    assert _killed_after(detector, found, begin_s=PROBE_S if before is not found else 0.0) == found.limit_s


def test_a_pause_of_the_parent_is_not_held_against_the_process():
    """A frozen container wakes up as a whole: one look after an hour is one look."""
    detector = HangDetector(PROBE_S, 0.0)
    assert not detector.observe(HUNG, 3_600.0)
    assert _killed_after(detector, HUNG, begin_s=3_600.0) == HUNG.limit_s - PROBE_S


def test_two_short_stops_are_no_long_one():
    """A process that was continued in between begins anew."""
    detector = HangDetector(PROBE_S, 0.0)
    for begin_s in (0.0, 20.0, 40.0):
        assert not any(detector.observe(STOPPED, begin_s + after_s) for after_s in (5.0, 10.0, 15.0))
        assert not detector.observe(WELL, begin_s + 17.0)
