"""The supervisor over scripted processes, which listen or not and exit when the test says."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from contextvars import ContextVar
from pathlib import Path

import pytest
from loguru import logger

from asr_server.core.errors import ShuttingDown
from asr_server.core.idle import end_when_idle
from asr_server.processes import supervisor, unix_sockets
from asr_server.processes.supervisor import (
    HangConfig,
    ProbeResult,
    ProcessEnd,
    ProcessState,
    ProcessUnavailable,
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


class _Supervised:
    """A supervisor and all its processes; `kinds` are what they are, the last one for all that follow."""

    def __init__(self, *kinds, idle_s=0.0, start_s=5.0, stop_s=5.0, spawned=None):
        self.processes, self._kinds = [], list(kinds)
        self._spawned = spawned or (lambda: None)
        self.supervisor = Supervisor(self._spawn, SupervisorConfig("one", start_s, idle_s, stop_s))

    async def _spawn(self, listener):
        self._spawned()
        kind = self._kinds.pop(0) if len(self._kinds) > 1 else self._kinds[0]
        if kind == "absent":
            raise FileNotFoundError("no such program")
        self.processes.append(_Process(listener, kind))
        await self.processes[-1].begin()
        return self.processes[-1]


async def _until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def temporary(monkeypatch):
    """The only directory in which a socket can be bound."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(unix_sockets, "_SHARED_MEMORY", "/none")
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def supervise(temporary, monkeypatch):
    """Makes them, and stops what is left in them."""
    monkeypatch.setattr(supervisor, "_FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(supervisor, "GIVE_UP_S", 60.0)
    made = []

    def make(*kinds, **config):
        made.append(_Supervised(*(kinds or ("good",)), **config))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes:
            process.end(0)


async def test_a_process_outlives_the_context_of_the_first_request(supervise):
    """Or all lines about the process would have the id of that request."""
    request, seen = ContextVar("request", default=None), []
    case = supervise(spawned=lambda: seen.append(request.get()))
    request.set("a")
    await case.supervisor.running()
    await case.supervisor.stop()
    assert seen == [None]


async def test_all_who_need_it_get_the_same_process(supervise):
    """Ten callers, one process."""
    case = supervise()
    connections = await asyncio.gather(*(case.supervisor.running() for _ in range(10)))
    assert len({id(connection) for connection in connections}) == len(case.processes) == 1
    await case.supervisor.stop()


async def test_a_running_process_has_no_file_that_could_be_deleted(supervise, temporary):
    """Its descriptors are closed when it ends."""
    case, before = supervise(), os.listdir("/proc/self/fd")
    for _ in range(2):
        await case.supervisor.running()
        assert not list(temporary.iterdir())
        await case.supervisor.stop()
    assert os.listdir("/proc/self/fd") == before


async def test_without_a_directory_for_its_socket_the_log_says_why_and_the_next_start_succeeds(
    supervise, temporary, monkeypatch
):
    """As a program that cannot be started, until there is one again; no traceback."""
    case, lines = supervise(), []
    monkeypatch.setattr(supervisor, "GIVE_UP_S", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    sink = logger.add(lines.append, format="{message} {extra[reason]}", level="ERROR", filter=lambda r: r["extra"])
    with pytest.raises(ProcessUnavailable):
        await case.supervisor.running()
    logger.remove(sink)
    assert f"No such file or directory: '{temporary / 'none'}" in lines[0]
    assert "Traceback" not in "".join(lines)
    assert not case.processes
    (temporary / "none").mkdir()
    await asyncio.sleep(0.1)
    await case.supervisor.running()
    await case.supervisor.stop()


async def test_a_crash_is_followed_by_a_new_process_and_the_old_link_says_so(supervise):
    """Also when nobody asks for it just then."""
    case = supervise()
    first = await case.supervisor.running()
    case.processes[0].end(-9)
    await case.supervisor.lost(first)
    assert first.gone.is_set()
    second = await case.supervisor.running()
    assert second is not first
    assert len(case.processes) == 2
    await case.supervisor.stop()


@pytest.mark.parametrize("kind", ["dies", "absent"])
async def test_a_crash_loop_is_given_up_with_an_error(supervise, kind):
    """All who wait get the error, and later callers get it at once."""
    case = supervise(kind)
    results = await asyncio.gather(*(case.supervisor.running() for _ in range(3)), return_exceptions=True)
    assert [type(r) for r in results] == [ProcessUnavailable] * 3
    assert case.supervisor.state is ProcessState.FAILED
    tried = len(case.processes)
    with pytest.raises(ProcessUnavailable):
        await case.supervisor.running()
    assert len(case.processes) == tried <= 5


async def test_one_that_is_not_ready_in_time_is_killed_and_another_tried(supervise):
    """A process that never listens does not hold callers for ever."""
    case = supervise("mute", "good", start_s=0.1)
    await case.supervisor.running()
    assert case.processes[0].signals == ["KILL"]
    await case.supervisor.stop()


async def test_an_idle_process_is_ended_but_not_while_it_is_used(supervise):
    """Use counts until it ends."""
    case = supervise(idle_s=0.05)
    watch = asyncio.create_task(end_when_idle([case.supervisor], 0.05))
    case.supervisor.idle.hold()
    await case.supervisor.running()
    await asyncio.sleep(0.3)
    assert case.supervisor.state is ProcessState.RUNNING
    case.supervisor.idle.release()
    await _until(lambda: case.supervisor.state is ProcessState.STOPPED)
    assert case.processes[0].signals == ["TERM"]
    await case.supervisor.running()
    assert len(case.processes) == 2
    watch.cancel()
    await case.supervisor.stop()


async def test_one_that_does_not_end_is_killed(supervise):
    """SIGTERM first, SIGKILL after the time for it."""
    case = supervise("stubborn", stop_s=0.05)
    await case.supervisor.running()
    await case.supervisor.stop()
    assert case.processes[0].signals == ["TERM", "KILL"]
    assert case.supervisor.state is ProcessState.STOPPED


async def test_a_stop_in_the_middle_of_a_start_leaves_no_process_behind(supervise):
    """A caller that waits for it gets the next process."""
    case = supervise("mute", "good")
    waiting = asyncio.create_task(case.supervisor.running())
    await _until(lambda: case.processes)
    await case.supervisor.stop()
    assert case.processes[0].signals == ["TERM"]
    await waiting
    assert len(case.processes) == 2
    await case.supervisor.stop()


async def test_a_closed_one_takes_nobody_any_more(supervise):
    """Neither those who come nor those who wait."""
    case = supervise("mute")
    waiting = asyncio.create_task(case.supervisor.running())
    await _until(lambda: case.processes)
    await case.supervisor.close()
    for late in (waiting, case.supervisor.running()):
        with pytest.raises(ShuttingDown):
            await late


async def test_closing_without_a_process_is_done_at_once(supervise):
    """There is nothing to end."""
    case = supervise()
    with contextlib.suppress(ShuttingDown):
        async with asyncio.timeout(1):
            await case.supervisor.close()
    assert case.supervisor.state is ProcessState.STOPPED
    assert not case.processes


def _watched(case, results):
    """Looks at the process; what is seen is `results[process]`, of the last started one."""
    config = HangConfig(hang_s=0.05, load_s=60.0, probe_s=1.0)

    def probe():
        return results[min(len(case.processes), len(results)) - 1]

    return asyncio.create_task(case.supervisor.end_when_hung(probe, config))


async def test_a_hung_process_is_killed_and_followed_by_another(supervise):
    """As after a crash: the next caller gets another process, which is healthy and stays."""
    case = supervise()
    watch = _watched(case, [ProbeResult.HUNG, ProbeResult.HEALTHY])
    first = await case.supervisor.running()
    async with asyncio.timeout(10):
        await first.gone.wait()
    assert case.processes[0].signals == ["KILL"]
    second = await case.supervisor.running()
    await asyncio.sleep(0.3)
    assert await case.supervisor.running() is second
    assert len(case.processes) == 2
    watch.cancel()
    await case.supervisor.stop()
    assert case.supervisor.ends == {end: int(end in (ProcessEnd.HUNG, ProcessEnd.STOPPED)) for end in ProcessEnd}


@pytest.mark.parametrize("result", [ProbeResult.HEALTHY, ProbeResult.LOADING, ProbeResult.SILENT])
async def test_one_that_moves_or_may_load_is_let_be(supervise, result):
    """Silence alone is no hang while its model was never seen."""
    case = supervise()
    watch = _watched(case, [result])
    connection = await case.supervisor.running()
    await asyncio.sleep(0.3)
    assert await case.supervisor.running() is connection
    watch.cancel()
    await case.supervisor.stop()


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
    watch = _watched(case, [ProbeResult.LOADING])
    with monkeypatch.context() as patched:
        patched.setattr(_Process, "pid", stopped)
        first = asyncio.create_task(case.supervisor.running())
        await _until(lambda: case.processes and case.processes[0].signals)
    await first
    await _until(lambda: len(case.processes) == 2)
    await case.supervisor.running()
    assert len(case.processes) == 2
    assert case.processes[0].signals == ["KILL"]
    watch.cancel()
    await case.supervisor.stop()
    assert case.supervisor.ends[ProcessEnd.HUNG] == 1


async def test_every_end_is_counted_by_its_cause(supervise):
    """A crash, one that came up too late, one that was stopped."""
    case = supervise("good", "mute", "good", start_s=0.1)
    await case.supervisor.running()
    case.processes[0].end(-9)
    await _until(lambda: len(case.processes) == 3)
    await case.supervisor.running()
    await case.supervisor.stop()
    assert len(case.processes) == 3
    assert case.supervisor.ends == {end: int(end is not ProcessEnd.HUNG) for end in ProcessEnd}


async def test_a_crash_behind_a_kill_is_counted_as_a_crash(supervise):
    """The cause of one end is not that of the next."""
    case = supervise("mute", "good", start_s=0.1)
    await case.supervisor.running()
    case.processes[1].end(-9)
    await _until(lambda: len(case.processes) == 3)
    await case.supervisor.running()
    counted = {end: count for end, count in case.supervisor.ends.items() if count}
    assert counted == {ProcessEnd.LATE: 1, ProcessEnd.CRASHED: 1}
    await case.supervisor.stop()


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
