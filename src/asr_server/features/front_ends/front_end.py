"""One of the processes that serve the port: what it shares with the others, and what it passes on to them.

- The engine process, the limits of callers and of the server's work, and the metrics are common to all.
- What is asked of jobs goes to the process that has their store.
- A client that resumes a live session may be connected to another process than the one that keeps it. Its socket is
  relayed, before anything is checked here: the other process checks it, as one of its own.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from asr_server.core.errors import AsrError, UnsupportedValue, WorkerUnavailable
from asr_server.core.settings import Settings
from asr_server.engine.feature import Plan
from asr_server.engine_core import EngineCore, Watch
from asr_server.features.engine_process import client
from asr_server.features.front_ends import sums
from asr_server.features.front_ends.ledger import ENGINE, JOBS, Ledger
from asr_server.features.gateway import sockets
from asr_server.features.gateway.metrics import CONTENT_TYPE
from asr_server.features.gateway.proxy import Proxy
from asr_server.features.gateway.worker import WorkerConnection
from asr_server.jobs.disk_store import DiskStore, JobFolders
from asr_server.jobs.record import RecordFormat
from asr_server.jobs.store import JobLimits, JobStore
from asr_server.net.errors import TABLE, http_response
from asr_server.ops import health, metrics_route
from asr_server.ops.metric_spec import WorkerEnd
from asr_server.services import Services

# Between two looks at where a process is reached that has just started.
_POLL_S = 0.05
_LOST_S = 1.0  # for a process to end whose connection broke
_REPLACED_S = 60.0  # in which a process that is replaced has ended for sure
# What changes by itself, such as the seconds of audio that wait, is told this often; the metrics every few times.
_TELL_S, _METRICS_EVERY = 0.1, 10
# Says in a relayed handshake where the client is, after the secret of the server.
_CLIENT = b"x-asr-server-client"
_RESUMABLE = "/ws/transcribe"


@dataclass(frozen=True, slots=True)
class Here:
    """This process among those of the server."""

    ledger: Ledger
    has_jobs: bool  # it has the store of jobs, and serves no port
    directory: Path  # of this process alone

    def no_jobs(self, limits: JobLimits, records: RecordFormat) -> JobStore:
        """Return a store that stays empty, as requests for jobs are passed on."""
        return DiskStore(limits, lambda: JobFolders(self.directory, records))


class _Process:
    """Another process of this server, as a gateway's `Worker` is one. `role`: which."""

    def __init__(self, ledger: Ledger, role: str) -> None:
        self._ledger, self._role = ledger, role
        self._connection: WorkerConnection | None = None
        self._closing: asyncio.Task[None] | None = None
        self.ends: dict[WorkerEnd, int] = {}  # whoever supervises the process counts them

    async def running(self) -> WorkerConnection:
        """Return the way to the process, once there is one. Raises `WorkerUnavailable` while its supervisor says that
        it does not stay up, or does not start in time."""
        while True:
            number, path, failure = self._ledger.reached(self._role)
            if failure:
                raise WorkerUnavailable(failure)
            if path:
                return self._to(number, path)
            # It starts. Nothing in this process is told when it is there: its supervisor writes that down.
            await asyncio.sleep(_POLL_S)

    def _to(self, number: int, path: str) -> WorkerConnection:
        before = self._connection
        if before is not None and before.number == number:
            return before
        self._connection = found = WorkerConnection(number, Path(path))
        if before is not None:
            before.gone.set()
            self._closing = asyncio.create_task(_close_later(before))
        return found

    async def lost(self, connection: WorkerConnection) -> None:
        """Wait, after a connection broke, until its process is gone too or evidently goes on."""
        for _ in range(round(_LOST_S / _POLL_S)):
            number, path, _ = self._ledger.reached(self._role)
            if number != connection.number or not path:
                connection.gone.set()
                return
            await asyncio.sleep(_POLL_S)

    def served(self) -> None:
        """Do nothing: its supervisor sees what it does."""

    def kill(self, why: str) -> None:
        """Do nothing: its supervisor sees that it hangs."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """Do nothing: it is never ended because it is idle."""
        yield

    async def drain(self) -> None:
        """Do nothing: it ends with the server."""


async def _close_later(connection: WorkerConnection) -> None:
    """Close what is kept of a process that has been replaced, once it has ended: until then it answers."""
    await asyncio.sleep(_REPLACED_S)
    await connection.http.aclose()


def build(ledger: Ledger, settings: Settings, resolved: Plan, watch: Watch) -> EngineCore:
    """Return engines whose rows go to the engine process of the server."""
    return client.build(settings, resolved, watch, _Process(ledger, ENGINE))


def with_siblings(app: FastAPI, settings: Settings, here: Here) -> ASGIApp:
    """Return the app with what it has in common with those of the other processes. `here`: this process."""
    ledger = here.ledger
    common = APIRouter(include_in_schema=False)
    common.add_api_route("/metrics", _metrics(ledger))
    common.add_api_route("/health", _health(ledger))
    common.add_api_route("/v1/live/{session}/share", _not_shared, methods=["POST"])
    routes = list(common.routes)
    if not here.has_jobs and not settings.jobs_database_url.get_secret_value():
        jobs = Proxy(_Process(ledger, JOBS), settings.max_upload_bytes)
        # What creates a job of another kind ends with `/jobs`.
        routes += [Route("/v1/jobs{below:path}", jobs), Route("/v1/{kind:path}/jobs", jobs)]
    app.router.routes[:0] = routes
    return Relay(app, ledger)


async def tell(app: FastAPI, ledger: Ledger) -> None:
    """Tell the others what this process does, again and again; and learn that the server is about to end."""
    services: Services = app.state.services
    turn = 0
    while True:
        # Changes by time alone: what is answered of a recording, and a session that falls silent.
        services.admission.tell()
        live = services.live
        # That this is told at all shows the supervisor that the event loop moves.
        ledger.tell({"sessions": len(live), "waiting": live.waiting, "jobs": services.jobs.pending})
        # All at once, as load balancers ask any of them whether the server is ready.
        services.draining |= ledger.draining
        if turn % _METRICS_EVERY == 0:
            ledger.tell_metrics((await metrics_route.exposition(app)).decode())
        turn += 1
        await asyncio.sleep(_TELL_S)


Answer = Callable[[Request], Awaitable[Response]]


def _metrics(ledger: Ledger) -> Answer:
    async def metrics(request: Request) -> Response:
        # Of this process too what it told last: with newer figures the sum would be less at the next process, and a
        # counter that falls counts as one that began again. Parsing thousands of lines takes tens of milliseconds.
        body = await asyncio.to_thread(sums.metrics, ledger.told_metrics())
        return Response(body, headers={"Content-Type": CONTENT_TYPE})

    return metrics


def _health(ledger: Ledger) -> Answer:
    async def answer(request: Request) -> Response:
        body = await health.health(request, request.app.state.services)
        return JSONResponse(sums.health(body.model_dump(mode="json"), ledger.told()))

    return answer


async def _not_shared(session: str) -> Response:
    """Refuse to share a session: its readers would come to other processes than the one that has it."""
    raise UnsupportedValue("Sessions cannot be shared where several processes serve (WORKERS).", param="session_id")


class Relay:
    """Passes on the handshakes of sessions that another process keeps, and reads those that another passed on."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app, self._ledger = app, ledger
        self._secret = ledger.secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            scope, passed_on = self._read(scope)
            if not passed_on and scope["path"] == _RESUMABLE and (path := self._keeper(scope)):
                await self._pass_on(path, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _read(self, scope: Scope) -> tuple[Scope, bool]:
        """Return the scope of the client's handshake, and whether another process passed it on."""
        value = dict(scope["headers"]).get(_CLIENT, b"")
        secret, _, address = value.partition(b" ")
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != _CLIENT]}
        if not hmac.compare_digest(secret, self._secret):
            return scope, False
        return {**scope, "client": (address.decode("latin-1"), 0) if address else None}, True

    def _keeper(self, scope: Scope) -> tuple[int, str] | None:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        session = query.get("session_id", "")
        found = self._ledger.keeper(session) if session else (0, "")
        return found if found[1] else None

    async def _pass_on(self, keeper: tuple[int, str], scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        number, path = keeper
        address = scope["client"][0].encode("latin-1") if scope["client"] else b""
        headers = [*scope["headers"], (_CLIENT, self._secret + b" " + address)]
        query = scope["query_string"].decode("latin-1")
        try:
            upstream = await sockets.connect(WorkerConnection(number, Path(path)), {**scope, "headers": headers}, query)
            await sockets.relay(socket, upstream)
        except sockets.HandshakeRefused as refused:
            await sockets.end(socket, refused.response, sockets.Closed(sockets.UNCLEAN))
        except sockets.WorkerGone:  # it has ended since the ledger was read, and its session with it
            await self._app(scope, receive, send)
        except AsrError as error:
            await sockets.end(socket, http_response(error), sockets.Closed(TABLE[error.code].ws_close, error.code))
        except (WebSocketDisconnect, OSError):
            return
