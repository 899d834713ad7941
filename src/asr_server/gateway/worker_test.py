"""The worker's shell, over processes of straw: sockets that accept, exit codes that come when told."""

import asyncio
import contextlib
import tempfile

import pytest

from asr_server.api.metrics.spec import WorkerEnd
from asr_server.core.errors import ShuttingDown, WorkerUnavailable
from asr_server.gateway.hang_detector import HangConfig, ProbeResult
from asr_server.gateway.restart_policy import RestartConfig, WorkerState
from asr_server.gateway.worker import Worker, WorkerConfig


class _Process:
    """Listens, or never does, or dies at once. Ends when asked, unless it is stubborn."""

    pid = 4711

    def __init__(self, path, kind):
        self._path, self._kind = path, kind
        self._code = asyncio.get_running_loop().create_future()
        self._server = None
        self.signals = []

    async def begin(self):
        if self._kind == "dies":
            self._code.set_result(1)
        elif self._kind != "mute":
            self._server = await asyncio.start_unix_server(lambda _, writer: writer.close(), str(self._path))

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
        if not self._code.done():
            self._code.set_result(code)


class _House:
    """A worker and all its processes; `kinds` are what they are, the last one for all that follow."""

    def __init__(self, *kinds, idle_s=0.0, start_s=5.0, stop_s=5.0, busy=None):
        self.processes, self._kinds = [], list(kinds)
        self._busy = busy or (lambda: False)
        life = RestartConfig(first_wait_s=0.01, rest_s=60.0)
        self.worker = Worker(self._spawn, WorkerConfig(start_s, idle_s, stop_s, life), self._has_work)

    async def _has_work(self, _):
        return self._busy()

    async def _spawn(self, path):
        kind = self._kinds.pop(0) if len(self._kinds) > 1 else self._kinds[0]
        if kind == "absent":
            raise FileNotFoundError("no such program")
        self.processes.append(_Process(path, kind))
        await self.processes[-1].begin()
        return self.processes[-1]


async def _until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def house(tmp_path, monkeypatch):
    """Makes houses, and stops what is left in them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []

    def make(*kinds, **rules):
        made.append(_House(*(kinds or ("good",)), **rules))
        return made[-1]

    yield make
    for one in made:
        for process in one.processes:
            process.end(0)


async def test_all_who_need_it_get_the_same_worker(house):
    """Ten callers, one process."""
    here = house()
    links = await asyncio.gather(*(here.worker.running() for _ in range(10)))
    assert len({id(link) for link in links}) == len(here.processes) == 1
    await here.worker.stop()


async def test_a_worker_that_sleeps_leaves_nothing_that_could_be_cleared_away(house, tmp_path):
    """Its folder is its own, for us alone, and goes with it; the next has another."""
    here, places = house(), []
    for _ in range(2):
        socket = (await here.worker.running()).socket
        assert [socket.parent] == list(tmp_path.iterdir())
        assert socket.parent.stat().st_mode & 0o077 == 0
        places.append(socket.parent)
        await here.worker.stop()
        assert not list(tmp_path.iterdir())
    assert places[0] != places[1]


async def test_a_place_that_cannot_be_made_is_told_and_tried_again(house, tmp_path, monkeypatch):
    """As a program that cannot be started."""
    here = house()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(WorkerUnavailable):
        await here.worker.running()
    assert here.worker.state is WorkerState.FAILED
    assert not here.processes


async def test_a_crash_is_followed_by_a_new_worker_and_the_old_link_says_so(house):
    """Also when nobody asks for it just then."""
    here = house()
    first = await here.worker.running()
    here.processes[0].end(-9)
    await here.worker.lost(first)
    assert first.gone.is_set()
    second = await here.worker.running()
    assert second is not first
    assert second.socket != first.socket
    assert len(here.processes) == 2
    await here.worker.stop()


@pytest.mark.parametrize("kind", ["dies", "absent"])
async def test_a_crash_loop_is_given_up_with_an_error(house, kind):
    """All who wait are told, those who come later at once."""
    here = house(kind)
    results = await asyncio.gather(*(here.worker.running() for _ in range(3)), return_exceptions=True)
    assert [type(r) for r in results] == [WorkerUnavailable] * 3
    assert here.worker.state is WorkerState.FAILED
    tried = len(here.processes)
    with pytest.raises(WorkerUnavailable):
        await here.worker.running()
    assert len(here.processes) == tried <= 5


async def test_one_that_is_not_ready_in_time_is_killed_and_another_tried(house):
    """A worker that never listens does not hold callers for ever."""
    here = house("mute", "good", start_s=0.1)
    await here.worker.running()
    assert here.processes[0].signals == ["KILL"]
    await here.worker.stop()


async def test_an_idle_worker_is_ended_but_not_while_it_is_used_or_busy(house):
    """Use counts until it ends, and work that only the worker knows of counts too."""
    busy = True
    here = house(idle_s=0.05, busy=lambda: busy)
    watch = asyncio.create_task(here.worker.end_when_idle())
    with here.worker.use():
        await here.worker.running()
        busy = False
        await asyncio.sleep(0.3)
        assert here.worker.state is WorkerState.RUNNING
        busy = True
    await asyncio.sleep(0.3)
    assert here.worker.state is WorkerState.RUNNING
    busy = False
    await _until(lambda: here.worker.state is WorkerState.STOPPED)
    assert here.processes[0].signals == ["TERM"]
    assert here.worker.link is None
    await here.worker.running()
    assert len(here.processes) == 2
    watch.cancel()
    await here.worker.stop()


async def test_one_that_does_not_end_is_killed(house):
    """SIGTERM first, SIGKILL after the time for it."""
    here = house("stubborn", stop_s=0.05)
    await here.worker.running()
    await here.worker.stop()
    assert here.processes[0].signals == ["TERM", "KILL"]
    assert here.worker.state is WorkerState.STOPPED


async def test_a_stop_in_the_middle_of_a_start_leaves_no_process_behind(house):
    """Whoever waits for it is told, and the next caller gets a fresh one."""
    here = house("mute", "good")
    waiting = asyncio.create_task(here.worker.running())
    await _until(lambda: here.processes)
    await here.worker.stop()
    assert here.processes[0].signals == ["TERM"]
    assert (await waiting).number == 2
    await here.worker.stop()


async def test_a_draining_one_takes_nobody_any_more(house):
    """Neither those who come nor those who wait."""
    here = house("mute")
    waiting = asyncio.create_task(here.worker.running())
    await _until(lambda: here.processes)
    await here.worker.drain()
    for late in (waiting, here.worker.running()):
        with pytest.raises(ShuttingDown):
            await late


async def test_draining_without_a_worker_is_done_at_once(house):
    """There is nothing to end."""
    here = house()
    with contextlib.suppress(ShuttingDown):
        async with asyncio.timeout(1):
            await here.worker.drain()
    assert here.worker.state is WorkerState.STOPPED
    assert not here.processes


def _watched(here, signs):
    """Looks at the worker; what is seen is `signs[process]`, of the last started one."""
    rules = HangConfig(hang_s=0.05, load_s=60.0, look_s=1.0)

    async def look(_):
        return signs[min(len(here.processes), len(signs)) - 1]

    return asyncio.create_task(here.worker.end_when_hung(look, rules))


async def test_a_hung_worker_is_killed_and_followed_by_another(house):
    """As after a crash: the old link is gone, who needs a worker gets the next, which is well and stays."""
    here = house()
    watch = _watched(here, [ProbeResult.HUNG, ProbeResult.WELL])
    first = await here.worker.running()
    async with asyncio.timeout(10):
        await first.gone.wait()
    assert here.processes[0].signals == ["KILL"]
    second = await here.worker.running()
    await asyncio.sleep(0.3)
    assert here.worker.link is second
    assert here.worker.starts == 2
    watch.cancel()
    await here.worker.stop()
    assert here.worker.ends == {end: int(end in (WorkerEnd.HUNG, WorkerEnd.STOPPED)) for end in WorkerEnd}


@pytest.mark.parametrize("sign", [ProbeResult.WELL, ProbeResult.LOADING, ProbeResult.SILENT])
async def test_one_that_moves_or_may_load_is_let_be(house, sign):
    """Silence alone is no hang while its model was never seen."""
    here = house()
    watch = _watched(here, [sign])
    link = await here.worker.running()
    await asyncio.sleep(0.3)
    assert here.worker.link is link
    watch.cancel()
    await here.worker.stop()


async def test_every_end_is_counted_by_its_cause(house):
    """A crash, one that came up too late, one that was stopped."""
    here = house("good", "mute", "good", start_s=0.1)
    await here.worker.running()
    here.processes[0].end(-9)
    await _until(lambda: len(here.processes) == 3)
    await here.worker.running()
    await here.worker.stop()
    assert here.worker.starts == 3
    assert here.worker.ends == {end: int(end is not WorkerEnd.HUNG) for end in WorkerEnd}
