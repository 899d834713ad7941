"""The protocol's reading side, without a network: frames go in as bytes, the app takes messages."""

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from asr_server.cli.socket_protocol import SocketProtocol

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"


class Transport(asyncio.Transport):
    """Takes everything; knows whether it may read."""

    def __init__(self):
        super().__init__()
        self.reading, self.closing = True, False

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def write(self, data): ...


@pytest.fixture
async def protocol():
    """An open connection, whose app is the test."""

    async def app(scope, receive, send):
        await asyncio.Event().wait()

    made = SocketProtocol(uvicorn.Config(app, log_config=None), ServerState(), {})
    made.connection_made(Transport())
    made.data_received(HANDSHAKE)
    assert await made.receive() == {"type": "websocket.connect"}
    await made.send({"type": "websocket.accept"})
    yield made
    for task in made.tasks:
        task.cancel()
    made.connection_lost(None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Content-Length: 5\r\n", b"400"),
        (b"Transfer-Encoding: chunked\r\n", b"400"),
        (b"x: y\r\n" * 200, b"431"),
        (b"Cookie: " + b"y" * 10_000 + b"\r\n", b"431"),
    ],
)
async def test_what_is_no_handshake_is_answered(headers, status):
    """And the connection is over: nobody would ever have said another word on it."""

    async def app(scope, receive, send):
        raise AssertionError("nobody has connected")

    made = SocketProtocol(uvicorn.Config(app, log_config=None), ServerState(), {})
    transport, said = Transport(), []
    transport.write = said.append
    made.connection_made(transport)
    made.data_received(HANDSHAKE.replace(b"Host:", headers + b"Host:"))
    assert b"".join(said).startswith(b"HTTP/1.1 " + status)
    assert transport.closing
    made.connection_lost(None)


def _tiny(body):
    return b"".join(b"\x82\x81\0\0\0\0" + bytes([byte]) for byte in body)


async def test_few_messages_wait_however_many_come_at_once(protocol):
    """All are given to the app in order, and the network waits until they are."""
    body = bytes(range(256)) * 100
    protocol.data_received(_tiny(body))
    found = b""
    while len(found) < len(body):
        assert protocol.queue.qsize() < 1_000
        assert not protocol.transport.reading
        found += (await protocol.receive())["bytes"]
    assert found == body
    assert protocol.transport.reading


async def test_a_close_behind_much_audio_is_heard_in_its_place(protocol):
    """And nothing after it is looked at."""
    protocol.data_received(_tiny(bytes(5_000)) + CLOSE + _tiny(b"x"))
    for _ in range(5_000):
        assert (await protocol.receive())["bytes"] == b"\0"
    assert (await protocol.receive())["code"] == 1000
    assert protocol.queue.empty()


async def test_a_close_is_heard_though_the_app_takes_nothing_any_more(protocol):
    """The app closes while audio waits: the peer's answer to that ends the connection."""
    protocol.data_received(_tiny(bytes(5_000)) + CLOSE)
    await protocol.send({"type": "websocket.close", "code": 1008})
    assert protocol.transport.closing
