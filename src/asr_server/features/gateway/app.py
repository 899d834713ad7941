"""The gateway's ASGI app: its own routes, and a proxy to the worker for everything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI
from loguru import logger
from starlette.types import ASGIApp, Receive, Scope, Send

from asr_server import feature_list
from asr_server.core.errors import AsrError, SessionNotFound
from asr_server.core.idle import end_when_idle
from asr_server.core.settings import Settings
from asr_server.features.gateway.child import spawner
from asr_server.features.gateway.hang_detector import HangConfig
from asr_server.features.gateway.live import LiveSockets
from asr_server.features.gateway.proxy import Proxy
from asr_server.features.gateway.routes import GatewayRoutes
from asr_server.features.gateway.sockets import Sockets
from asr_server.features.gateway.worker import PROBE_PAUSE_S, Worker, WorkerConfig, WorkerConnection
from asr_server.features.gateway.worker_client import ANSWER_S, GatewayWorkerClient
from asr_server.features.shared_jobs import database
from asr_server.live.encodings import LiveEncodings
from asr_server.net import errors
from asr_server.net.access import AccessRules
from asr_server.net.edge import Edge
from asr_server.ops import page

_LOOK_FOR_JOBS_S = 30.0
_WAITS = b'"state":"waiting"'  # of a request about an ended job, in the job's record


def create_app(settings: Settings) -> FastAPI:
    """The app for these settings. Raises `PlanError`, as the worker would."""
    resolved = feature_list.resolve(settings)
    rules = AccessRules.of(settings, feature_list.open_paths())
    config = WorkerConfig(start_s=settings.worker_start_s, idle_s=settings.idle_timeout)
    client = GatewayWorkerClient(settings)

    async def busy(connection: WorkerConnection) -> bool:
        if await client.has_work(connection):
            return True
        await answers.exposition.remember(connection)
        return False

    worker = Worker(spawner(settings), config, busy)
    answers = GatewayRoutes(settings, resolved, worker, client)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(_log_loop_error)
        tasks = [asyncio.create_task(end_when_idle([worker], settings.idle_timeout))]
        if settings.worker_hang_s:
            tasks.append(asyncio.create_task(worker.end_when_hung(client.probe, _hang_config(settings))))
        tasks += [asyncio.create_task(_start(worker))] if settings.preload or _has_unfinished_jobs(settings) else []
        if url := settings.jobs_database_url.get_secret_value():
            tasks.append(asyncio.create_task(_start_for_shared_jobs(worker, url)))
        logger.info("gateway", idle_timeout_s=settings.idle_timeout)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await worker.drain()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.worker, app.state.model_id = worker, resolved.model_id
    app.state.drain_delay_s = settings.drain_delay_s
    app.include_router(answers.router())
    app.include_router(page.router)  # does not start the worker
    # As the default and not as routes: routes would match the paths above with other methods, which are answered with
    # 405 here, and for some of which no key is needed.
    app.state.live = live = LiveSockets(worker, settings.ws_resume_s)
    app.state.handover_s = settings.handover_s
    proxy = _with_worker(Proxy(worker, settings.max_upload_bytes), worker, rules)
    app.router.default = _everything_else(live, Sockets(worker), proxy)
    errors.install_handlers(app)
    app.add_middleware(LiveEncodings)
    app.add_middleware(Edge, rules=rules)
    return app


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the loop, but for one without effect: where a request to the worker is cancelled in the moment in
    which its answer arrives, anyio's `add_reader(socket, future.set_result, None)` finds the future over already."""
    if isinstance(context.get("exception"), asyncio.InvalidStateError) and "set_result" in context["message"]:
        return
    loop.default_exception_handler(context)


def _everything_else(live: ASGIApp, sockets: ASGIApp, proxy: ASGIApp) -> ASGIApp:
    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await proxy(scope, receive, send)
        elif scope["path"] == "/ws/transcribe" and _is_pcm(scope):
            await live(scope, receive, send)
        else:
            await sockets(scope, receive, send)

    return pass_on


def _with_worker(proxy: ASGIApp, worker: Worker, rules: AccessRules) -> ASGIApp:
    """Return the proxy without the open paths while no worker runs: who has no key must not start one.

    What is read there without a key has ended with the worker that had it.
    """

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if worker.connection is None and scope["path"].startswith(rules.open_paths):
            raise SessionNotFound("The link is not valid: no session is open here.")
        await proxy(scope, receive, send)

    return pass_on


def _is_pcm(scope: Scope) -> bool:
    """Return False for a session whose audio only the worker can decode: it is not carried to another one."""
    encoding = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("encoding", "")
    return encoding in ("", "pcm_s16le", "linear16")


async def drain(app: FastAPI) -> None:
    """Report unready, and once load balancers have noticed accept no more work, ask live clients to move, and let the
    worker finish its work. Called before sockets are closed, so that every live session gets its final."""
    worker: Worker = app.state.worker
    live: LiveSockets = app.state.live
    await worker.refuse(app.state.drain_delay_s)
    await live.hand_over(app.state.handover_s)
    await worker.drain()


def _hang_config(settings: Settings) -> HangConfig:
    """A load may take as long as a request. A probe is at most two requests, after a pause."""
    hang_s = settings.worker_hang_s
    return HangConfig(hang_s, max(hang_s, settings.request_timeout), probe_s=2 * ANSWER_S + PROBE_PAUSE_S)


def _has_unfinished_jobs(settings: Settings) -> bool:
    """True if an earlier server left jobs of its own unfinished: they have to be done even if nobody asks for them."""
    if settings.jobs_database_url.get_secret_value():
        return False
    # Where `jobs/disk_store.py` keeps them; importing that would bring numpy into this process.
    try:
        directory = settings.state_dir.expanduser()
    except RuntimeError:  # the user has no home directory
        return False
    jobs = directory / "jobs"
    if any(jobs.glob("job_*/recording")):
        return True
    with suppress(OSError):  # the worker will say so
        return any(_WAITS in record.read_bytes() for record in jobs.glob("job_*/job.json"))
    return False


async def _start_for_shared_jobs(worker: Worker, url: str) -> None:
    """Start the worker whenever a job waits that another server accepted or did not finish. Runs for ever."""
    while True:
        if worker.connection is None and await database.work_waits(url):
            await _start(worker)
        await asyncio.sleep(_LOOK_FOR_JOBS_S)


async def _start(worker: Worker) -> None:
    with contextlib.suppress(AsrError):  # the probes report it
        await worker.running()
