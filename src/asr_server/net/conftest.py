"""A client of an app in the same process whose WebSockets end as real ones do."""

from __future__ import annotations

import asyncio
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


class Transport(asyncio.Transport):
    """A connection without a network: it takes everything, and keeps it. `unread`: what its peer has not taken."""

    def __init__(self):
        super().__init__()
        self.closing, self.sent, self.unread = False, b"", 0
        self.is_reading = True

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def get_write_buffer_size(self):
        return self.unread

    def set_write_buffer_limits(self, high=None, low=None):
        if high is not None and self.unread > high:
            self.get_protocol().pause_writing()

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def write(self, data):
        self.sent += data


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
