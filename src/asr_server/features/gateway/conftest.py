"""A gateway in front of scripted workers that run in this process: real sockets, no model."""

from __future__ import annotations

import asyncio
import functools
import json
from dataclasses import dataclass, field

import pytest
import uvicorn

from asr_server.core.settings import Settings
from asr_server.features.gateway import app as gateway
from asr_server.net.conftest import AppClient

KEYS = ("sk-first", "sk-second")
HEALTH = {
    "jobs": 0,
    "speech_queue": {"texts": 0},
    "live": {"sessions": 0},
    "queue": dict.fromkeys(("final", "partial", "interactive", "bulk", "running", "audio_held_s"), 0),
}


@dataclass
class Request:
    """What a worker was asked. `query`, `headers`: text; the last of equal names."""

    path: str
    query: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Workers:
    """All workers of one gateway, one after the other, and what they were asked.

    `on_request(process, request, send)` and `on_socket(process, request, receive, send)` are what they do. Probes of
    the gateway itself are answered and not counted.
    """

    processes: list[Process] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    on_request: object = None
    on_socket: object = None

    async def spawn(self, listener):
        """Start the next one."""
        self.processes.append(Process(self, listener))
        return self.processes[-1]


class Process:
    """One worker: listens on its socket until it is ended. `kill` breaks its connections, as a crash does."""

    pid = 4711

    def __init__(self, workers, listener):
        self._workers = workers
        # Its own logging stays unconfigured: what it would set is set for the whole process.
        config = uvicorn.Config(self._app, interface="asgi3", lifespan="off", ws="websockets-sansio", log_config=None)
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve([listener.dup()]))

    async def wait(self):
        await asyncio.shield(self._task)
        return 0

    def terminate(self):
        self._server.should_exit = self._server.force_exit = True

    def kill(self):
        for listening in self._server.servers:  # the loop of uvicorn would go on accepting for a moment
            listening.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        self.terminate()

    async def _app(self, scope, receive, send):
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request = Request(scope["path"], scope["query_string"].decode(), headers)
        if request.path in ("/health", "/livez"):
            await answer(send, 200, json.dumps(HEALTH).encode())
            return
        if scope["type"] == "websocket":
            self._workers.requests.append(request)
            await receive()
            await self._workers.on_socket(self, request, receive, send)
            return
        more = True
        while more:
            message = await receive()
            request.body += message.get("body", b"")
            more = message.get("more_body", False)
        self._workers.requests.append(request)
        await self._workers.on_request(self, request, send)


async def answer(send, status, body=b"", headers=(), length=None):
    """A whole answer, or with a larger `length` the beginning of one."""
    given = [(b"content-length", str(length or len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body, "more_body": length is not None})


@pytest.fixture
def workers(monkeypatch):
    """The workers of the gateways that `client` and `gateway_with` make."""
    made = Workers()
    monkeypatch.setattr(gateway, "spawner", lambda _: made.spawn)
    return made


@pytest.fixture
def gateway_with(workers, tmp_path):
    """Makes gateways, each as a client of it; they run until the end of the test."""
    clients = []

    def make(**settings):
        values = {"model_id": "demo", "gateway_mode": True, "state_dir": str(tmp_path), **settings}
        clients.append(GatewayClient(gateway.create_app(Settings(_env_file=None, **values))))
        return clients[-1].__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)


class GatewayClient(AppClient):
    """`worker`: the gateway's. `drain`: what its server awaits on SIGTERM."""

    def __init__(self, app):
        super().__init__(app)
        self.worker = app.state.worker
        self.drain = functools.partial(gateway.drain, app)


@pytest.fixture
def client(gateway_with):
    """A client of a gateway without keys."""
    return gateway_with()
