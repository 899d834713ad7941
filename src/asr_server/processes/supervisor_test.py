"""The supervisor over scripted processes, which listen or not and exit when the test says; its judgement of hangs and
of restarts."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from asr_server.core.errors import ShuttingDown
from asr_server.core.idle import end_when_idle
from asr_server.processes import supervisor, unix_sockets
from asr_server.processes.supervisor import (
    GIVE_UP_S,
    WELL,
    Condition,
    HangDetector,
    ProcessEnd,
    ProcessState,
    ProcessUnavailable,
    RestartPolicy,
    Supervisor,
    SupervisorConfig,
)


class _Process:
    """Listens, or never does, or dies at once. Ends at SIGTERM, unless it is stubborn."""

    pid = 4711

    def __init__(self, listener, kind):
        self._listener, self._kind = listener.dup(), kind
        self._code = asyncio.get_running_loop().create_future()
        self._server = None
        self.signals = []

    async def begin(self):
        if self._kind == "dies":
            self._code.set_result(1)
        elif self._kind != "mute":
            self._server = await asyncio.start_unix_server(lambda _, writer: writer.close(), sock=self._listener)

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
        self._listener.close()
        if not self._code.done():
            self._code.set_result(code)


class _Supervised(Supervisor):
    """A supervisor and all its processes; `kinds` are what they are, the last one for all that follow."""

    def __init__(self, *kinds, idle_s=0.0, start_s=5.0, stop_s=5.0):
        super().__init__(self._begin, SupervisorConfig("one", start_s, idle_s, stop_s))
        self.processes, self._kinds = [], list(kinds)

    async def _begin(self, listener):
        kind = self._kinds.pop(0) if len(self._kinds) > 1 else self._kinds[0]
        if kind == "absent":
            raise FileNotFoundError("no such program")
        self.processes.append(_Process(listener, kind))
        await self.processes[-1].begin()
        return self.processes[-1]

    def counted(self):
        return {end: count for end, count in self.ends.items() if count}


async def _until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
async def supervise(monkeypatch):
    """Makes them, and stops what is left of them."""
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.01)
    made = []

    def make(*kinds, **config):
        made.append(_Supervised(*(kinds or ("good",)), **config))
        return made[-1]

    yield make
    for one in made:
        await one.close()
        for process in one.processes:
            process.end(0)  # closes its socket


async def test_all_who_need_it_get_the_same_process(supervise):
    """The process has the context of none of them, or all lines about it would have the id of the first request."""
    request, seen = ContextVar("request", default=None), []
    case = supervise()
    sink = logger.add(lambda _: seen.append(request.get()), level="INFO")
    request.set("a")
    assert len({id(found) for found in await asyncio.gather(*(case.running() for _ in range(10)))}) == 1
    logger.remove(sink)
    assert len(case.processes) == 1
    assert seen == [None]


async def test_without_a_directory_for_its_socket_it_is_given_up_and_the_next_start_succeeds(
    supervise, tmp_path, monkeypatch
):
    """The supervisor gives up, as for a program that cannot be started, until there is a directory again."""
    case = supervise()
    monkeypatch.setattr(supervisor, "GIVE_UP_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(unix_sockets, "_SHARED_MEMORY", "/none")
        patched.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        with pytest.raises(ProcessUnavailable):
            await case.running()
    assert not case.processes
    await asyncio.sleep(0.1)
    await case.running()


async def test_a_crash_is_followed_by_a_new_process_also_when_nobody_asks(supervise):
    """Who has the old one learns that it is gone."""
    case = supervise()
    first = await case.running()
    case.processes[0].end(-9)
    await case.lost(first)
    assert first.gone.is_set()
    await _until(lambda: len(case.processes) == 2)
    assert await case.running() is not first


@pytest.mark.parametrize("kind", ["dies", "absent"])
async def test_a_crash_loop_is_given_up_with_an_error(supervise, kind):
    """All who wait get the error, and later callers get it at once."""
    case = supervise(kind)
    results = await asyncio.gather(*(case.running() for _ in range(3)), return_exceptions=True)
    assert [type(r) for r in results] == [ProcessUnavailable] * 3
    assert case.state is ProcessState.FAILED
    tried = len(case.processes)
    with pytest.raises(ProcessUnavailable):
        await case.running()
    assert len(case.processes) == tried <= 5


async def test_an_idle_process_is_ended_but_not_while_it_is_used(supervise):
    """Use counts until it ends."""
    case = supervise(idle_s=0.05)
    watch = asyncio.create_task(end_when_idle([case], 0.05))
    case.idle.hold()
    await case.running()
    await asyncio.sleep(0.3)
    assert case.state is ProcessState.RUNNING
    case.idle.release()
    await _until(lambda: case.state is ProcessState.STOPPED)
    watch.cancel()
    assert case.processes[0].signals == ["TERM"]
    await case.running()
    assert len(case.processes) == 2


async def test_one_that_does_not_end_is_killed(supervise):
    """SIGTERM first, SIGKILL after the time for it."""
    case = supervise("stubborn", stop_s=0.05)
    await case.running()
    await case.stop()
    assert case.processes[0].signals == ["TERM", "KILL"]
    assert case.state is ProcessState.STOPPED


async def test_a_stop_in_the_middle_of_a_start_leaves_no_process_behind(supervise):
    """A caller that waits for it gets the next process."""
    case = supervise("mute", "good")
    waiting = asyncio.create_task(case.running())
    await _until(lambda: case.processes)
    await case.stop()
    assert case.processes[0].signals == ["TERM"]
    await waiting
    assert len(case.processes) == 2


@pytest.mark.parametrize("started", [False, True])
async def test_a_closed_one_takes_nobody_any_more(supervise, started):
    """New callers and waiting callers are refused. A supervisor without a process closes at once."""
    case = supervise("mute")
    waiting = [asyncio.create_task(case.running())] * started
    await _until(lambda: len(case.processes) == started)
    await case.close()
    for late in (*waiting, case.running()):
        with pytest.raises(ShuttingDown):
            await late
    assert len(case.processes) == started


async def test_every_end_is_counted_by_its_cause(supervise):
    """One that comes up too late is killed, and followed by others: a crash after a kill is a crash."""
    case = supervise("mute", "good", start_s=0.1)
    await case.running()
    assert case.processes[0].signals == ["KILL"]
    case.processes[1].end(-9)
    await _until(lambda: len(case.processes) == 3)
    await case.running()
    await case.stop()
    assert case.counted() == {ProcessEnd.LATE: 1, ProcessEnd.CRASHED: 1, ProcessEnd.STOPPED: 1}


def _watched(case, found):
    """Looks at the process; what is seen is `found[process]`, of the last started one."""
    return asyncio.create_task(
        case.end_when_hung(lambda: found[min(len(case.processes), len(found)) - 1], hang_s=0.05, probe_s=1.0)
    )


async def test_a_hung_process_is_killed_and_followed_by_another(supervise):
    """The next caller gets another process, as after a crash. That one may be silent for longer."""
    case = supervise()
    watch = _watched(case, [Condition("hung", 0.05), Condition("silent", 60.0)])
    first = await case.running()
    async with asyncio.timeout(10):
        await first.gone.wait()
    assert case.processes[0].signals == ["KILL"]
    second = await case.running()
    await asyncio.sleep(0.3)
    assert await case.running() is second
    watch.cancel()
    assert case.counted() == {ProcessEnd.HUNG: 1}


@pytest.fixture
def stopped():
    """The id of a process that a signal has stopped."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(signal.SIGSTOP)
        yield process.pid
        process.kill()


@pytest.mark.parametrize("kind", ["good", "mute"])
async def test_one_that_is_stopped_is_killed_although_it_may_load_or_start(supervise, kind, stopped, monkeypatch):
    """Nobody waits for what a signal has stopped."""
    case = supervise(kind, "good", start_s=60.0)
    watch = _watched(case, [WELL])
    with monkeypatch.context() as patched:
        patched.setattr(_Process, "pid", stopped)
        first = asyncio.create_task(case.running())
        await _until(lambda: case.processes and case.processes[0].signals)
    await first
    await _until(lambda: len(case.processes) == 2)
    await case.running()
    watch.cancel()
    assert case.processes[0].signals == ["KILL"]
    assert case.counted() == {ProcessEnd.HUNG: 1}


CHILD = """
import time
from asr_server.processes.supervisor import end_with_parent
end_with_parent()
time.sleep(30)
"""


def test_it_ends_with_its_standard_input():
    """The parent holds the other end, which closes with it, however it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.DEVNULL,
        env={"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
        check=False,
    )
    assert ended.returncode < 0


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


# -- restarts --------------------------------------------------------------------------------------------------------


def test_after_a_crash_it_is_started_at_once_then_later_and_later():
    """The wait doubles while nobody is answered, and then it is given up for a while; one more failure gives it up
    again. One that never became ready, however long that took, is as one that crashed."""
    policy = RestartPolicy()
    policy.begin(0.0)
    assert [policy.on_exit(60.0 * number) for number in range(1, 6)] == [0.0, 0.25, 0.5, 1.0, None]
    assert policy.state is ProcessState.FAILED
    assert not policy.begin(309.9)
    assert policy.begin(310.0)
    policy.on_ready(310.0)
    assert policy.on_exit(310.0) is None
    assert not policy.begin(319.9)


@pytest.mark.parametrize("fruit", ["served", "time"])
def test_a_process_that_was_of_use_makes_up_for_crashes(fruit):
    """Any number of crashes with answers between them never gives up."""
    policy, now_s = RestartPolicy(), 0.0
    policy.begin(now_s)
    for _ in range(50):
        policy.on_ready(now_s)
        if fruit == "served":
            policy.served()
        else:
            now_s += 30.0
        assert policy.on_exit(now_s) == 0.0
    assert policy.state is ProcessState.STARTING


@given(st.lists(st.sampled_from(["begin", "on_ready", "served", "stop", "on_exit"]), max_size=60))
def test_no_order_of_events_leaves_it_where_nobody_can_start_it(events):
    """One that is being stopped never takes work. Whatever happens, once the process is gone it can be started, at the
    latest after the pause."""
    policy, now_s = RestartPolicy(), 0.0
    for event in events:
        now_s += 1.0
        was_stopping = policy.state is ProcessState.STOPPING
        timed = event in ("begin", "on_ready", "on_exit")
        getattr(policy, event)(*([now_s] if timed else []))
        assert not (was_stopping and policy.state in (ProcessState.STARTING, ProcessState.RUNNING))
    if policy.state in (ProcessState.RUNNING, ProcessState.STOPPING):
        policy.on_exit(now_s)
    assert policy.state in (ProcessState.STARTING, ProcessState.STOPPED, ProcessState.FAILED)
    if policy.state is not ProcessState.STARTING:
        assert policy.begin(now_s + GIVE_UP_S)
