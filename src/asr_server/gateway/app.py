"""The gateway's app: its own answers first, everything else to the worker. Builds everything once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from loguru import logger
from starlette.types import ASGIApp, Receive, Scope, Send

from asr_server.api import errors
from asr_server.api.edge import install
from asr_server.api.edge.access import AccessRules
from asr_server.api.ops import page
from asr_server.core.errors import AsrError, InvalidKey
from asr_server.core.settings import Settings
from asr_server.engine import capabilities, plan
from asr_server.gateway.child import spawner
from asr_server.gateway.hang_detector import HangConfig
from asr_server.gateway.live import LiveSockets
from asr_server.gateway.proxy import Proxy
from asr_server.gateway.routes import GatewayRoutes
from asr_server.gateway.sockets import Sockets
from asr_server.gateway.worker import PAUSE_S, Worker, WorkerConfig, WorkerConnection
from asr_server.gateway.worker_client import ANSWER_S, WorkerClient


def create_app(settings: Settings) -> FastAPI:
    """The app for these settings. Raises `PlanError`, as the worker would."""
    resolved = plan.resolve(settings, capabilities.probe())
    rules = WorkerConfig(start_s=settings.worker_start_s, idle_s=settings.idle_timeout)
    questions = WorkerClient(settings)

    async def busy(link: WorkerConnection) -> bool:
        if await questions.has_work(link):
            return True
        await answers.exposition.remember(link)
        return False

    worker = Worker(spawner(settings), rules, busy)
    answers = GatewayRoutes(settings, resolved, worker, questions)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(worker.end_when_idle())] if settings.idle_timeout else []
        if settings.worker_hang_s:
            tasks.append(asyncio.create_task(worker.end_when_hung(questions.sign, _patience(settings))))
        tasks += [asyncio.create_task(_start(worker))] if settings.preload or _has_left_jobs(settings) else []
        logger.info("gateway", idle_timeout_s=settings.idle_timeout)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await worker.drain()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.worker = worker
    app.include_router(answers.router())
    app.include_router(page.router)  # looking at the page wakes nobody
    # No routes, which would also get what the routes above answer with 405, of callers who need no key for these paths.
    app.router.default = _everything_else(
        LiveSockets(worker, settings.ws_resume_s),
        Sockets(worker),
        Proxy(worker, settings.max_upload_bytes, settings.request_timeout),
    )
    errors.install_handlers(app)
    install.install_middleware(app, AccessRules.of(settings, functools.partial(_ephemeral_owner, worker)))
    return app


def _everything_else(live: ASGIApp, sockets: ASGIApp, proxy: ASGIApp) -> ASGIApp:
    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await proxy(scope, receive, send)
        elif scope["path"] == "/ws/transcribe":
            await live(scope, receive, send)
        else:
            await sockets(scope, receive, send)

    return pass_on


async def drain(app: FastAPI) -> None:
    """Before the sockets are closed: the worker ends what it has, which gives every live session its final."""
    worker: Worker = app.state.worker
    await worker.drain()


def _patience(settings: Settings) -> HangConfig:
    """Nobody waits longer for a load than a request may take. A look is two questions and a pause."""
    hang_s = settings.worker_hang_s
    return HangConfig(hang_s, max(hang_s, settings.request_timeout), look_s=2 * ANSWER_S + PAUSE_S)


def _ephemeral_owner(worker: Worker, _: str) -> str:
    """Ephemeral keys end with the worker that issued them. A running worker checks its own."""
    if worker.link is None:
        raise InvalidKey("The ephemeral key is unknown or has expired.")
    return ""


def _has_left_jobs(settings: Settings) -> bool:
    """Whether an earlier server left jobs undone, for which nobody may ask: those still have their recordings."""
    # Where `service/jobs/store.py` keeps them; importing that would bring numpy into this process.
    try:
        directory = settings.state_dir.expanduser()
    except RuntimeError:  # a user without a home has none
        return False
    return any((directory / "jobs").glob("*/recording"))


async def _start(worker: Worker) -> None:
    with contextlib.suppress(AsrError):  # told by the probes
        await worker.running()
