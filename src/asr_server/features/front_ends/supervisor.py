"""The parent of the processes of one server: it holds the sockets, starts each process, and starts it again.

It serves nothing itself, and computes nothing. The sockets of the port are its own, one for each front end
(`SO_REUSEPORT` in socket(7)): the kernel divides new connections among them. A connection that arrives while a front
end starts again waits in its socket, which stays open here. SIGHUP replaces the processes one after another.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from loguru import logger
from prometheus_client.exposition import generate_latest

from asr_server import feature_list
from asr_server.app import log_plan
from asr_server.core.errors import AsrError, ShuttingDown, WorkerUnavailable
from asr_server.core.settings import Settings
from asr_server.engine_core import Watch, log_state
from asr_server.features.engine_process import ENDS, client
from asr_server.features.front_ends import NAME, sums
from asr_server.features.front_ends.ledger import ENGINE, FRONT_END, JOBS, SUPERVISOR, Ledger
from asr_server.features.gateway.child import child_environment, starter
from asr_server.features.gateway.hang_detector import HangConfig, ProbeResult
from asr_server.features.gateway.metrics import ParsedCollector, joined
from asr_server.features.gateway.worker import PROBE_PAUSE_S, Process, Worker, WorkerConfig, WorkerConnection
from asr_server.ops.metric_spec import WORKER_STARTS, MetricSample
from asr_server.ops.metrics_route import SampleCollector
from asr_server.ops.server_metrics import Metrics
from asr_server.schedule.model import ModelState

if TYPE_CHECKING:
    from prometheus_client import Metric

_PROGRAM = "asr_server.features.front_ends"
_SHARED_MEMORY = "/dev/shm"
_PREFIX, _OWNED = "asr-server-front-ends-", "owned"
_BACKLOG = 2048
# Processes tell every 0.1 s that they move; one whose loop is busy does so later.
_SILENT_S = 5.0
_TICK_S = 1.0
_RETRY_S = 1.0
# Callers reach the process that has the jobs through front ends, which apply the limits of callers.
_OF_JOBS = {"key_max_requests": 0, "key_rate": 0, "max_live_sessions": 1_000_000, "drain_delay_s": 0}
_FAILED = 70  # EX_SOFTWARE of sysexits.h


def front_ends(settings: Settings) -> int:
    """Return how many processes are to serve the port, 0 where one is all of the server. Raises `PlanError`."""
    resolved = feature_list.resolve(settings)
    return int(resolved.value(NAME)) if resolved.is_active(NAME) else 0


def serve(settings: Settings, count: int, announce: Callable[[int | None], None]) -> int:
    """Serve with `count` front ends until SIGTERM or SIGINT. `announce` is called with the port once all are there."""
    with ExitStack() as stack:
        ports = [stack.enter_context(closing(Port(settings.host, settings.port)))]
        ports += [stack.enter_context(closing(Port(settings.host, ports[0].port))) for _ in range(count - 1)]
        directory = stack.enter_context(_directory())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Supervisor(settings, ports, directory).run(lambda: announce(ports[0].port)))


@contextmanager
def _directory() -> Iterator[Path]:
    """Yield a directory in memory for the ledger, and remove those of servers that were killed: nobody locks them."""
    parent = Path(_SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*/{_OWNED}"):
        with suppress(OSError), left.open("ab") as owned:  # somebody else's cannot be opened
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as made, (Path(made) / _OWNED).open("ab") as owned:
        fcntl.flock(owned, fcntl.LOCK_EX)
        yield Path(made)


class Port:
    """The sockets of one front end, bound to the addresses of the host that this machine has."""

    def __init__(self, host: str, port: int) -> None:
        self.sockets: list[socket.socket] = []
        self.port = port
        reason: OSError | None = None
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                bound = socket.create_server((address[0], self.port), family=family, backlog=_BACKLOG, reuse_port=True)
            except OSError as error:
                reason = error
                continue
            self.sockets.append(bound)
            self.port = bound.getsockname()[1]
        if not self.sockets:
            raise reason or OSError(f"{host} has no address")

    def close(self) -> None:
        """Close the sockets."""
        for bound in self.sockets:
            bound.close()


class _Supervisor:
    """The processes of one server. Used on one event loop."""

    def __init__(self, settings: Settings, ports: list[Port], directory: Path) -> None:
        self._settings = settings.model_copy(update={"engine_process": True})
        self._ports, self._path = ports, directory / "ledger.db"
        self._ledger = Ledger.make(self._path, 0)
        self._ledger.add(0, SUPERVISOR)
        self._number = 0  # of the newest process
        self._numbers: dict[Worker, int] = {}  # of the present process of each
        self._places: dict[Worker, Port | None] = {}  # None: the jobs' process
        self._tending: dict[Worker, asyncio.Task[None]] = {}
        self._metrics = Metrics()
        self._counted: dict[str, Metric] = {}  # the counters of processes that have ended
        self._ends, self._replace = asyncio.Event(), asyncio.Event()

    async def run(self, announce: Callable[[], None]) -> int:
        """Run all processes until a signal ends them, and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ends.set)
        loop.add_signal_handler(signal.SIGHUP, self._replace.set)
        engine = self._engine()
        assert isinstance(engine.worker, Worker)
        tasks = [loop.create_task(self._tend_engine(engine.worker)), loop.create_task(self._tick(engine))]
        jobs = [] if self._settings.jobs_database_url.get_secret_value() else [None]
        for port in (*jobs, *self._ports):
            self._start(port)
        try:
            code = await self._until_told_to_end(announce)
            self._ledger.drain()
            await asyncio.sleep(self._settings.drain_delay_s if code == 0 else 0)
            for port in self._ports:
                port.close()
            await asyncio.gather(*(self._stop(worker) for worker in list(self._tending)))
            return code
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.to_thread(engine.close)
            self._ledger.close()

    async def _until_told_to_end(self, announce: Callable[[], None]) -> int:
        ends = asyncio.create_task(self._ends.wait())
        ready = asyncio.gather(*(worker.running() for worker in self._tending))
        try:
            either: set[asyncio.Future[Any]] = {ends, ready}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ends.done():
                ready.result()
                announce()
        except AsrError as error:
            logger.critical("the server does not start", reason=error.message)
            return _FAILED
        finally:
            ready.cancel()
        while not ends.done():
            asked = asyncio.create_task(self._replace.wait())
            await asyncio.wait({ends, asked}, return_when=asyncio.FIRST_COMPLETED)
            self._replace.clear()
            if not ends.done():
                replacing = asyncio.create_task(self._replace_all())
                await asyncio.wait({ends, replacing}, return_when=asyncio.FIRST_COMPLETED)
                replacing.cancel()
            asked.cancel()
        return 0

    # -- front ends, and the process that has the jobs ---------------------------------------------------------------

    def _start(self, port: Port | None) -> Worker:
        """Start a process that serves the port, or, with None, the one that has the jobs."""
        role = FRONT_END if port is not None else JOBS
        public = [bound.fileno() for bound in port.sockets] if port is not None else []
        # The supervisor waits for load balancers. The limits of callers count where a request comes in from them.
        changes = {"drain_delay_s": 0} if port is not None else _OF_JOBS
        environment = child_environment(self._settings, **changes)

        async def spawn(listener: socket.socket) -> Process:
            # Each process has a number of its own: what the one before told cannot be taken for what this one tells.
            self._forget(worker)
            self._numbers[worker] = number = self._next(role)
            module = _PROGRAM, "--number", str(number), "--ledger", str(self._path)
            where = ("--public", *map(str, public)) if public else ()
            return await starter((*module, *where), environment, inherits=public)(listener)

        async def busy(_: WorkerConnection) -> bool:
            return True  # it is not ended when it is idle

        async def probe(_: WorkerConnection) -> ProbeResult:
            silent = self._ledger.beat_age_s(self._numbers[worker]) > _SILENT_S
            return ProbeResult.SILENT if silent else ProbeResult.HEALTHY

        async def tend() -> None:
            hang_s = self._settings.worker_hang_s
            limits = HangConfig(hang_s, max(hang_s, self._settings.request_timeout), probe_s=PROBE_PAUSE_S + _SILENT_S)
            watching = asyncio.create_task(worker.end_when_hung(probe, limits)) if hang_s else None
            try:
                await self._tend(worker)
            finally:
                if watching is not None:
                    watching.cancel()

        worker = Worker(spawn, WorkerConfig(self._settings.worker_start_s, idle_s=0, name=role), busy)
        self._places[worker] = port
        self._tending[worker] = asyncio.create_task(tend())
        return worker

    async def _tend(self, worker: Worker) -> None:
        """Have a process until it is stopped, and tell the others where it is."""
        while True:
            try:
                connection = await worker.running()
            except WorkerUnavailable as error:
                self._ledger.unreachable(self._numbers[worker], error.message)
                await asyncio.sleep(_RETRY_S)
                continue
            except ShuttingDown:
                self._forget(worker)
                return
            # Only now, when it accepts connections: the others wait until they are told where it is.
            self._ledger.found(self._numbers[worker], _for_others(connection.socket))
            await connection.gone.wait()

    async def _stop(self, worker: Worker) -> None:
        """End a process in order: it hands over its live sessions and finishes its requests. What comes for it from the
        others waits for the next one."""
        if worker in self._numbers:
            self._ledger.unreachable(self._numbers[worker])
        await worker.drain()
        # Not awaited: whoever is cancelled meanwhile, as by SIGTERM, would cancel it.
        await asyncio.wait({self._tending[worker]})
        del self._tending[worker], self._places[worker]

    async def _replace_all(self) -> None:
        """Replace the processes one after another. A new one takes callers before the old one ends; only the jobs'
        store has one process at a time."""
        logger.info("the processes are replaced one after another", count=len(self._tending))
        for old, port in list(self._places.items()):
            if port is None:  # `STATE_DIR` has a lock
                await self._stop(old)
                self._start(port)
                continue
            new = self._start(port)  # both accept from the same socket for a while
            try:
                await new.running()
            except AsrError:
                logger.error("the new process does not start, and the old one goes on")
                await self._stop(new)
                return
            await self._stop(old)
        logger.info("the processes are replaced")

    def _next(self, role: str) -> int:
        self._number += 1
        self._ledger.add(self._number, role)
        return self._number

    def _forget(self, worker: Worker) -> None:
        """Remove the last process of a worker, which has ended, from what the others see. Its counters stay."""
        number = self._numbers.pop(worker, 0)
        for name, metric in sums.counters(self._ledger.remove(number)).items() if number else ():
            known = self._counted.get(name)
            self._counted[name] = joined(known, metric) if known is not None else metric

    # -- the engine process ------------------------------------------------------------------------------------------

    def _engine(self) -> client.EngineProcess:
        def on_state(model: str, state: ModelState, took_s: float) -> None:
            log_state(model, state, took_s)
            self._metrics.engine.became(state, took_s)

        watch = Watch(self._metrics.engine, on_state)
        resolved = feature_list.resolve(self._settings)
        log_plan(self._settings, resolved)
        thread = client.build(self._settings, resolved, watch).thread
        assert isinstance(thread, client.EngineProcess)
        return thread

    async def _tend_engine(self, worker: Worker) -> None:
        """Tell the others where the engine process is, which its own client here starts and watches."""
        while True:
            number = self._next(ENGINE)
            try:
                connection = await worker.running()
                self._ledger.found(number, _for_others(connection.socket))
                await connection.gone.wait()
            except WorkerUnavailable as error:
                self._ledger.unreachable(number, error.message)
                await asyncio.sleep(_RETRY_S)
            except ShuttingDown:
                return
            finally:
                self._ledger.remove(number)

    async def _tick(self, engine: client.EngineProcess) -> None:
        """Keep what the others see of this process."""
        done_s = 0.0
        while True:
            if (now_s := engine.work.live_s + engine.work.recordings_s) > done_s:
                done_s = now_s
                engine.worker.served()  # it answered others: what they get does not pass here
            # In a thread: a process that a signal stops in the middle of a change keeps others waiting until this loop
            # has it killed.
            await asyncio.to_thread(self._tell, list(self._families(engine)))
            await asyncio.sleep(_TICK_S)

    def _tell(self, families: list[Metric]) -> None:
        with closing(Ledger(self._path, 0)) as ledger:
            ledger.forget_full_buckets()
            ledger.tell_metrics(generate_latest(ParsedCollector(families)).decode())

    def _families(self, engine: client.EngineProcess) -> Iterator[Metric]:
        samples = [
            MetricSample(WORKER_STARTS, {(): float(self._number)}),
            MetricSample(ENDS, {(cause,): count for cause, count in engine.ends.items()}),
        ]
        own = {family.name: family for family in self._metrics.registry.collect()}
        own |= {family.name: family for family in SampleCollector(samples).collect()}
        for name, family in own.items():
            known = self._counted.get(name)
            yield joined(known, family) if known is not None else family
        yield from (family for name, family in self._counted.items() if name not in own)


def _for_others(path: Path) -> str:
    """Return the path by which other processes reach a socket that this one reaches by `path`."""
    return str(path).replace("/proc/self/", f"/proc/{os.getpid()}/")
