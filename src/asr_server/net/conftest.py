"""A client of an app in the same process whose WebSockets end as real ones do. The gateway's tests use it too."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from starlette.testclient import TestClient

from asr_server import app as server
from asr_server.core.settings import Settings


class AppClient(TestClient):
    """At a local address, which servers without keys answer to. `state`: that of the app."""

    def __init__(self, app):
        self.state = app.state
        self._ended = threading.Semaphore(0)

        async def watched(scope, receive, send):
            try:
                await app(scope, receive, send)
            finally:
                if scope["type"] == "websocket":
                    self._ended.release()

        super().__init__(watched, base_url="http://127.0.0.1")

    @contextmanager
    def socket(self, path, **options):
        """A WebSocket that the client closes in order. Starlette's own would cancel the app instead of letting it end.

        `path`: with its query.
        """
        with self.websocket_connect(f"ws://127.0.0.1{path}", **options) as socket:
            yield socket
            socket.close()
            assert self._ended.acquire(timeout=20), "the app did not end"


@pytest.fixture
def serve(tmp_path):
    """Makes servers on the fake engine, each as a client of it; they run until the end of the test."""
    clients = []

    def make(**settings):
        values = {"model_id": "fake", "state_dir": str(tmp_path), **settings}
        clients.append(AppClient(server.create_app(Settings(_env_file=None, **values))))
        return clients[-1].__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve):
    """A client of a server without keys."""
    return serve()
