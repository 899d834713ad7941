"""One of the processes that serve the port: what it shares with the others, and what it passes on to them.

- The engine process, the limits of callers and of the server's work, and the metrics are common to all.
- What is asked of jobs goes to the process that has their store.
- A client that resumes a live session may be connected to another process than the one that keeps it, and so may
  those who share it and its readers. Their sockets and requests are relayed, before anything is checked here: the other
  process checks them, as its own.
"""

from __future__ import annotations

import asyncio
import hmac
import re
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

from asr_server.core.errors import AsrError, WorkerUnavailable
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
from asr_server.features.sharing.sharing import digest
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
# Says in a relayed request where the client is, after the secret of the server.
_CLIENT = b"x-asr-server-client"
_RESUMABLE = "/ws/transcribe"
_SHARING = re.compile(r"(?:/openai)?/v1/live/(?:shared/(?P<token>[^/]+)/|(?P<session>[^/]+)/share(?:/|$))")
_MAX_BODY_BYTES = 64 * 1024  # of a relayed request; the other process takes less


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
    """Another process of this server, as a gateway's `Worker` is one.

    `reached`: returns which it is now, its path, and otherwise why it cannot be reached, as `Ledger.reached`.
    """

    def __init__(self, reached: Callable[[], tuple[int, str, str]]) -> None:
        self._reached = reached
        self._connection: WorkerConnection | None = None
        self._closing: asyncio.Task[None] | None = None
        self.ends: dict[WorkerEnd, int] = {}  # whoever supervises the process counts them

    async def running(self) -> WorkerConnection:
        """Return the way to the process, once there is one. Raises `WorkerUnavailable` while its supervisor says that
        it does not stay up, or does not start in time."""
        while True:
            number, path, failure = self._reached()
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
            number, path, _ = self._reached()
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

    async def close(self) -> None:
        """Close the connections to it. What is asked over them breaks off."""
        if self._connection is not None:
            await self._connection.http.aclose()


async def _close_later(connection: WorkerConnection) -> None:
    """Close what is kept of a process that has been replaced, once it has ended: until then it answers."""
    await asyncio.sleep(_REPLACED_S)
    await connection.http.aclose()


def build(ledger: Ledger, settings: Settings, resolved: Plan, watch: Watch) -> EngineCore:
    """Return engines whose rows go to the engine process of the server."""
    return client.build(settings, resolved, watch, _Process(lambda: ledger.reached(ENGINE)))


def with_siblings(app: FastAPI, settings: Settings, here: Here) -> Relay:
    """Return the app with what it has in common with those of the other processes. `here`: this process."""
    ledger = here.ledger
    common = APIRouter(include_in_schema=False)
    common.add_api_route("/metrics", _metrics(ledger))
    common.add_api_route("/health", _health(ledger))
    routes = list(common.routes)
    if not here.has_jobs and not settings.jobs_database_url.get_secret_value():
        jobs = Proxy(_Process(lambda: ledger.reached(JOBS)), settings.max_upload_bytes)
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


class Relay:
    """Passes on what concerns a session or link that another process keeps, and reads what another passed on."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app, self._ledger = app, ledger
        self._secret = ledger.secret.encode()
        self._asked: set[_Process] = set()  # once for each request that is relayed now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            scope, passed_on = self._read(scope)
            name = "" if passed_on else _kept_name(scope)
            if name and self._ledger.keeper(name)[1]:
                relay = self._relay_socket if scope["type"] == "websocket" else self._relay_request
                await relay(name, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def drain(self) -> None:
        """Cut off those who read sessions of other processes: their streams would keep this process from ending. They
        connect again, to another process. If the whole server ends, their streams end in order, with the sessions."""
        if not self._ledger.draining:
            await asyncio.gather(*(process.close() for process in self._asked))

    def _read(self, scope: Scope) -> tuple[Scope, bool]:
        """Return the scope of the client's request or handshake, and whether another process passed it on."""
        value = dict(scope["headers"]).get(_CLIENT, b"")
        secret, _, address = value.partition(b" ")
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != _CLIENT]}
        if not hmac.compare_digest(secret, self._secret):
            return scope, False
        return {**scope, "client": (address.decode("latin-1"), 0) if address else None}, True

    def _with_client(self, scope: Scope) -> Scope:
        """Return the scope with what the other process reads of the client."""
        address = scope["client"][0].encode("latin-1") if scope["client"] else b""
        return {**scope, "headers": [*scope["headers"], (_CLIENT, self._secret + b" " + address)]}

    async def _relay_request(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        def reached() -> tuple[int, str, str]:
            number, path = self._ledger.keeper(name)
            return number, path, "" if path else "The process that had the session has ended."

        # The other process gives it an id, unless the client has.
        identity = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        scope = {**self._with_client(scope), "state": {"id": identity}}
        process = _Process(reached)
        self._asked.add(process)
        try:
            await Proxy(process, _MAX_BODY_BYTES, inside_edge=False)(scope, receive, send)
        except AsrError as error:  # before anything was answered
            await http_response(error)(scope, receive, send)
        finally:
            self._asked.remove(process)
            await process.close()

    async def _relay_socket(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        number, path = self._ledger.keeper(name)
        query = scope["query_string"].decode("latin-1")
        try:
            upstream = await sockets.connect(WorkerConnection(number, Path(path)), self._with_client(scope), query)
            await sockets.relay(socket, upstream)
        except sockets.HandshakeRefused as refused:
            await sockets.end(socket, refused.response, sockets.Closed(sockets.UNCLEAN))
        except sockets.WorkerGone:  # it has ended since the ledger was read, and its session with it
            await self._app(scope, receive, send)
        except AsrError as error:
            await sockets.end(socket, http_response(error), sockets.Closed(TABLE[error.code].ws_close, error.code))
        except (WebSocketDisconnect, OSError):
            return


def _kept_name(scope: Scope) -> str:
    """Return the id of the session, or the digest of the link, that a request or handshake is about; "" for none."""
    if scope["type"] == "websocket":
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        return query.get("session_id", "") if scope["path"] == _RESUMABLE else ""
    if (found := _SHARING.match(scope["path"])) is None:
        return ""
    return found["session"] or digest(found["token"])
