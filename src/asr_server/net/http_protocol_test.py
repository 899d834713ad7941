"""The protocol's reading side, without a network: requests go in as bytes."""

import asyncio
import socket
from contextlib import asynccontextmanager
from itertools import accumulate
from unittest.mock import Mock

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from asr_server.net import http_protocol
from asr_server.net.conftest import Transport
from asr_server.net.http_protocol import HttpProtocol

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
UPGRADE = GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
OK, BAD = b"HTTP/1.1 200 OK", b"HTTP/1.1 400 "
LIMIT = 64 * 1024


@pytest.fixture(autouse=True)
def no_rests(monkeypatch):
    """A connection that sends much goes on at once: tests count turns of the event loop."""
    monkeypatch.setattr(http_protocol, "REQUEST_REST_S", 0)
    monkeypatch.setattr(http_protocol, "SLICE_REST_S", 0)


async def _app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await _answer(200, b"", send)


async def _answer(status, body, send):
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(scope, receive, send):
    await _answer(401, b"no", send)


async def _never(scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass


def _made(app, kind=HttpProtocol, keep_alive_s=75):
    config = uvicorn.Config(app, log_config=None, timeout_keep_alive=keep_alive_s)
    config.load()
    return kind(config, ServerState(), {})


def _connected(app=_app, **options):
    protocol = _made(app, **options)
    transport = Transport()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return protocol


@pytest.fixture
async def opened():
    """Makes connections, which are lost at the end."""
    made = []
    yield lambda *args, **options: made.append(_connected(*args, **options)) or made[-1]
    for protocol in made:
        protocol.connection_lost(None)


async def _turns():
    """The event loop's, not the clock's: enough for an app that waits for nothing."""
    for _ in range(100):
        await asyncio.sleep(0)


async def _responses(protocol, count):
    """Wait for that many successful responses, however many slices of time their parsing takes."""
    async with asyncio.timeout(30):
        while protocol.transport.sent.count(OK) < count:  # noqa: ASYNC110 - the transport sets no event
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("before", "piece", "most"),
    [
        (GET, b"x: y\r\n" * 200, 2_400),  # many headers
        (GET + b"x: ", b"y" * 1_200, 2_400),  # one that is long
        (b"GET /", b"a" * 1_000, 2_000),  # the address is the first line of a head
        (POST + b"1\r\na\r\n0\r\n", b"x: y\r\n" * 200, 3_000),  # trailers after a body in pieces are a head too
    ],
)
async def test_a_head_without_an_end_is_not_kept(opened, before, piece, most):
    """400 at 64 KiB and a piece of the network's at most, and the end of the connection."""
    protocol, taken = opened(), len(before)
    protocol.data_received(before)
    while not protocol.transport.closing and taken <= LIMIT + most:
        protocol.data_received(piece)
        taken += len(piece)
    await _turns()
    assert BAD in protocol.transport.sent
    assert protocol.transport.closing
    assert taken <= LIMIT + most


@pytest.mark.parametrize(
    ("lines", "answer"),
    [
        (b"x: " + b"y" * (LIMIT - 100) + b"\r\n", OK),
        (b"x: " + b"y" * LIMIT + b"\r\n", BAD),
        (b"a: b\r\n" * 255, OK),  # a line costs the time of all that look for one
        (b"a: b\r\n" * 256, BAD),
        (b"Host: other\r\n", BAD),  # a proxy in front may have let the request pass because of the other one
        (b"host: localhost\r\n", BAD),
    ],
)
async def test_a_whole_head_has_limits_too(opened, lines, answer):
    """They hold also when the network brings the head at once: bytes, lines, and one host."""
    protocol = opened()
    protocol.data_received(GET + lines + b"\r\n")
    await _turns()
    assert protocol.transport.sent.startswith(answer)


# Java's and Apache's clients offer another protocol with every upload.
OFFERS = [
    b"",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
    b"Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c, websocket\r\n",
]
HANDSHAKES = [UPGRADE.replace(b"Upgrade: web", line) for line in (b"Upgrade: web", b"upgrade:Web", b"UPGRADE: \tweb")]
FRAMES = b"\x81\x85\0\0\0\0Hello" * 1_000


@st.composite
def _requests(draw):
    """The bytes of a request, and what the app gets of it: its query and its body."""
    query, offer = b"%d" % draw(st.integers(0, 99)), draw(st.sampled_from(OFFERS))
    body = draw(st.binary(max_size=9)) * draw(st.sampled_from([1, 500, 8_000]))  # of more bytes than a head may have
    body += draw(st.sampled_from([b"", b"\r\nUpgrade: h2c\r\n\r\n"]))
    head = b"POST /?%b HTTP/1.1\r\nHost: x\r\n%b" % (query, offer)
    framing = draw(st.sampled_from(["none", "length", "chunks"]))
    if framing == "none":
        return head.replace(b"POST", b"GET") + b"\r\n", query, b""
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, query, body
    size = draw(st.integers(max(1, len(body) // 50), 40_000))
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    trailers = draw(st.sampled_from([b"", b"Authorization: Bearer key\r\nX-Forwarded-For: 1.2.3.4\r\n"]))
    sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n" + trailers
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + sent + b"\r\n", query, body


@settings(max_examples=300)
@given(
    st.lists(_requests(), min_size=1, max_size=4),
    st.sampled_from(["close", "1.0", *HANDSHAKES]),
    st.sampled_from([1, 7, 100, 4_096, 7_000, 1 << 20]),
)
def test_requests_are_those_that_were_sent_however_their_bytes_arrive(requests, end, size):
    """Each request reaches the app with its whole body, whatever its length, its chunks and its offers to speak another
    protocol. Its trailers are no headers. Frames that a client sends with a handshake come after it."""
    *others, (last, *expected) = requests
    if end == "close":
        at, more = (b": Upgrade", b", close") if b": Upgrade" in last else (b"\r\n", b"Connection: close\r\n")
        last = last.replace(at, at + more, 1)
    elif end == "1.0":
        last = last.replace(b"HTTP/1.1", b"HTTP/1.0")
    seen = []

    async def app(scope, receive, send):
        message, whole = {"more_body": True}, b""
        while message.get("more_body"):
            message = await receive()
            whole += message.get("body", b"")
        assert not {b"authorization", b"x-forwarded-for"} & dict(scope["headers"]).keys()
        seen.append((scope["http_version"], scope["query_string"], whole))
        await _answer(200, b"", send)

    async def talk():
        protocol, frames = _connected(app), Mock()
        protocol.ws_protocol_class = lambda **options: frames
        _feed(protocol, b"".join([sent for sent, *_ in others] + [last]), size)
        await _responses(protocol, len(requests))
        if end in HANDSHAKES:
            _feed(protocol, end + FRAMES, size)
            await _turns()
            received = b"".join(call.args[0] for call in frames.data_received.call_args_list)
            head, _, rest = received.partition(b"\r\n\r\n")
            assert (head[:14], rest) == (b"GET / HTTP/1.1", FRAMES)
        else:
            assert protocol.transport.closing
            protocol.connection_lost(None)

    asyncio.run(talk())
    version = "1.0" if end == "1.0" else "1.1"
    assert seen == [*(("1.1", *got) for _, *got in others), (version, *expected)]


def _feed(protocol, data, size):
    size = max(size, len(data) // 500)
    for at in range(0, len(data), size):
        protocol.transport.get_protocol().data_received(data[at : at + size])


@pytest.mark.parametrize(
    ("head", "body", "most_bytes"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n", bytes(200_000), 64 * 1024),
        (POST, b"1\r\nx\r\n" * 4_000 + b"0\r\n\r\n", 4 * 1024),
    ],
)
async def test_only_a_body_of_known_length_is_parsed_in_large_parts(opened, head, body, most_bytes):
    """Such a part ends with the body: what comes after it may be hundreds of requests."""
    protocol = opened()
    protocol.parser = Mock(wraps=protocol.parser)
    protocol.data_received(head + body + (GET + b"\r\n") * 3)
    await _responses(protocol, 4)
    assert not protocol.transport.closing
    sizes = [len(call.args[0]) for call in protocol.parser.feed_data.call_args_list]
    assert max(sizes) == most_bytes
    assert most_bytes < 64 * 1024 or len(head + body) in accumulate(sizes)


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"])
async def test_who_asks_nothing_is_not_kept(opened, before):
    """A connection without a whole request is closed at its beginning and after an answer, however its bytes arrive."""
    protocol = opened(keep_alive_s=0.2)
    protocol.data_received(before + GET)
    for _ in range(50):
        await asyncio.sleep(0.01)
        protocol.data_received(b"x: y\r\n")
    assert protocol.transport.closing


@pytest.mark.parametrize("asked", [2 * (GET + b"\r\n"), POST])
async def test_who_waits_for_an_answer_is_kept(opened, asked):
    """However long the answer takes, and the sending of a body; also the second of two requests at once."""
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await asyncio.sleep(0.05)
        if protocol.transport.sent or asked is POST:
            await go_on.wait()
        await _app(scope, receive, send)

    protocol = opened(slow, keep_alive_s=0.1)
    protocol.data_received(asked)
    await asyncio.sleep(0.5)
    assert not protocol.transport.closing
    go_on.set()
    protocol.data_received(b"0\r\n\r\n" if asked is POST else b"")
    await _responses(protocol, asked.count(b" / "))


async def test_no_handshake_takes_over_an_answer(opened):
    """The answer would be written to the socket's client."""
    protocol = opened(_never)
    protocol.data_received(GET + b"\r\n" + UPGRADE)
    await _turns()
    assert protocol.transport.closing
    assert protocol.transport.get_protocol() is protocol


async def test_requests_behind_an_answer_wait_unparsed(opened):
    """However many a client sends: one part of them at most is queued, and all of them are answered in order."""
    gate, seen, asked = asyncio.Event(), [], [b"%d" % number for number in range(600)]

    async def app(scope, receive, send):
        await gate.wait()
        seen.append(scope["query_string"])
        await _answer(200, b"", send)

    protocol = opened(app)
    protocol.data_received(b"".join(b"GET /?%b HTTP/1.1\r\n\r\n" % query for query in asked))
    await _turns()
    assert 100 < len(protocol.pipeline) < 250
    assert not protocol.transport.is_reading
    gate.set()
    await _responses(protocol, len(asked))
    await _turns()
    assert (seen, protocol.transport.is_reading) == (asked, True)


async def test_a_client_that_leaves_takes_its_queue_along(opened):
    """The request that is answered is told, and no other one begins."""
    seen = []

    async def app(scope, receive, send):
        seen.append("begun")
        await _never(scope, receive, send)
        seen.append("told")

    protocol = opened(app)
    protocol.data_received(3 * (GET + b"\r\n"))
    await _turns()
    protocol.transport.close()
    protocol.connection_lost(None)
    await _turns()
    assert seen == ["begun", "told"]


async def test_an_answer_is_over_when_it_is_written(opened):
    """An answer that its client does not read so keeps its place in the quota."""
    protocol = opened(_refuse)
    protocol.transport.unread = 1_000
    protocol.data_received(GET + b"\r\n")
    await _turns()
    (answer,) = protocol.tasks
    assert not answer.done()
    protocol.transport.unread = 0
    protocol.resume_writing()
    await asyncio.wait_for(answer, 10)
    assert protocol.transport.sent.endswith(b"\r\n\r\nno")


@pytest.mark.parametrize(("end", "is_closed"), [(b"1\r\na\r\n", True), (b"0\r\n\r\n", False)])
async def test_a_body_that_nobody_needs_has_an_end(opened, monkeypatch, end, is_closed):
    """The body's request is answered. It has a while to end, and the connection is kept if it does."""
    monkeypatch.setattr(http_protocol, "REST_S", 0.4)
    protocol = opened(_refuse)
    protocol.data_received(POST)
    await _turns()
    protocol.data_received(b"1\r\na\r\n" + end)
    await asyncio.sleep(0.6)
    assert protocol.transport.closing is is_closed


@asynccontextmanager
async def _served(protocol, app):
    """Over a real connection: a client's socket that has sent a request to a server with this protocol."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(lambda: _made(app, protocol), "127.0.0.1", 0) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, GET + b"\r\n")
            yield client


async def test_a_client_has_the_end_of_the_connection_with_that_of_the_answer(monkeypatch):
    """The server began to shut down in the middle of a stream, and its process has to wait for a processor before it
    closes the connection."""
    loop, protocols, going_on = asyncio.get_running_loop(), [], asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await going_on.wait()
        await send({"type": "http.response.body", "body": b"two"})

    class Closing(HttpProtocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            protocols.append(self)
            close = transport.close
            monkeypatch.setattr(transport, "close", lambda: loop.call_later(0.05, close), raising=False)

    async with _served(Closing, app) as client:
        received = await loop.sock_recv(client, 1_000)
        while b"one" not in received:
            received += await loop.sock_recv(client, 1_000)
        protocols[0].shutdown()
        going_on.set()
        while not received.endswith(b"0\r\n\r\n"):
            received += await loop.sock_recv(client, 1_000)
        assert client.recv(1_000) == b""
    assert b"connection: close" not in received.lower()


async def test_a_client_that_does_not_read_is_left(monkeypatch):
    """A client that reads slowly gets everything: an answer larger than all buffers."""
    monkeypatch.setattr(http_protocol, "UNREAD_S", 1)
    loop, ended, size = asyncio.get_running_loop(), asyncio.Event(), 1_000_000

    async def app(scope, receive, send):
        await _answer(200, bytes(size), send)
        await receive()
        ended.set()

    async with _served(HttpProtocol, app):
        await asyncio.wait_for(ended.wait(), 20)
    async with _served(HttpProtocol, app) as client:
        got, began_s = 0, loop.time()
        while got < size:
            part = await loop.sock_recv(client, 65_536)
            assert part
            got += len(part)
            if loop.time() - began_s < 1.6:
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("begins", [False, True])
async def test_a_client_that_ends_its_side_is_not_kept_by_an_app_without_an_answer(opened, caplog, begins):
    """The app has no answer if a response is not worth sending any more. It is no error that one which begins at
    the moment in which the client ends its side is then cancelled."""

    async def app(scope, receive, send):
        await _never(scope, receive, send)
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})

    protocol = opened(app)
    protocol.data_received(GET + b"\r\n")
    await _turns()
    assert protocol.eof_received()
    await _turns()
    assert protocol.transport.is_closing()
    assert "without completing" not in caplog.text
    assert not opened().eof_received()  # before any request: closed at once
