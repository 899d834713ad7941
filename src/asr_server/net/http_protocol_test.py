"""The protocol's reading side, without a network: requests go in as bytes."""

import asyncio
import socket
import time
from itertools import accumulate

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from asr_server.net import http_protocol
from asr_server.net.conftest import Transport
from asr_server.net.http_protocol import HttpProtocol

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK"
LIMIT = 64 * 1024


@pytest.fixture(autouse=True)
def no_rests(monkeypatch):
    """A connection that sends much goes on at once: tests count turns of the event loop."""
    monkeypatch.setattr(http_protocol, "_REQUEST_REST_S", 0)
    monkeypatch.setattr(http_protocol, "_SLICE_REST_S", 0)


async def _app(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _opened(app=_app, keep_alive_s=75):
    config = uvicorn.Config(app, log_config=None, timeout_keep_alive=keep_alive_s)
    config.load()
    protocol = HttpProtocol(config, ServerState(), {})
    transport = Transport()
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    return protocol


async def _turns():
    """The event loop's, not the clock's: enough for an app that waits for nothing."""
    for _ in range(100):
        await asyncio.sleep(0)


async def _fed(pieces, answers=0):
    """Return the response to these pieces, whether the connection is over, and how many bytes it took.

    `answers`: wait for that many successful responses, however many slices of time their parsing takes.
    """
    protocol, taken = _opened(), 0
    for piece in pieces:
        if protocol.transport.closing:
            break
        taken += len(piece)
        protocol.data_received(piece)
    await _turns()
    async with asyncio.timeout(20):
        while protocol.transport.sent.count(OK) < answers:
            await _turns()
    answer, over = protocol.transport.sent, protocol.transport.closing
    protocol.connection_lost(None)
    return answer, over, taken


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"", b"x: y\r\n" * 200),  # many headers
        (b"x: ", b"y" * 1200),  # one that is long
    ],
)
async def test_a_head_without_an_end_is_not_kept(before, piece):
    """400 at 64 KiB and a piece of the network's at most, and the end of the connection."""
    answer, over, taken = await _fed([GET + before] + [piece] * 1000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert over
    assert taken <= LIMIT + 2 * len(piece)


async def test_an_address_without_an_end_is_not_kept():
    """The address is the first line of a head."""
    answer, over, taken = await _fed([b"GET /"] + [b"a" * 1000] * 1000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert over
    assert taken <= LIMIT + 2000


async def test_trailers_without_an_end_are_not_kept():
    """The trailers after a body in pieces are a head too."""
    answer, over, taken = await _fed([POST + b"1\r\na\r\n0\r\n"] + [b"x: y\r\n" * 200] * 1000)
    assert b"HTTP/1.1 400 " in answer
    assert over
    assert taken <= LIMIT + 3000


@pytest.mark.parametrize(("size", "answer"), [(LIMIT - 100, OK), (LIMIT, b"HTTP/1.1 400 ")])
async def test_a_whole_head_has_the_same_limit(size, answer):
    """The limit holds also when the network brings the head at once."""
    given, _, _ = await _fed([GET + b"x: " + b"y" * size + b"\r\n\r\n"])
    assert given.startswith(answer)


@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=10), st.integers(1, 5))
def test_a_body_has_no_part_in_it(chunks, requests):
    """Requests one after the other, with bodies of any size in pieces of any size, are all answered."""
    body = b"".join(b"%x\r\n%s\r\n" % (size, b"a" * size) for size in chunks)

    async def answered():
        protocol = _opened()
        for at in range(requests):
            data = POST + body + b"0\r\n\r\n"
            for start in range(0, len(data), 7000):
                protocol.data_received(data[start : start + 7000])
            async with asyncio.timeout(10):
                while protocol.transport.sent.count(OK) <= at:  # noqa: ASYNC110 - the transport sets no event
                    await asyncio.sleep(0)
        found = protocol.transport.sent.count(OK), protocol.transport.closing
        protocol.connection_lost(None)
        return found

    assert asyncio.run(answered()) == (requests, False)


@pytest.mark.parametrize(
    ("head", "body", "most_bytes"),
    [
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n", bytes(200_000), 64 * 1024),
        (POST, b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n", 4 * 1024),
    ],
)
async def test_only_a_body_of_known_length_is_parsed_in_large_parts(monkeypatch, head, body, most_bytes):
    """Such a part ends with the body: what comes after it may be hundreds of requests."""
    sizes, feed = [], HttpProtocol._feed

    def counted(self, part):
        sizes.append(len(part))
        feed(self, part)

    monkeypatch.setattr(HttpProtocol, "_feed", counted)
    answer, over, _ = await _fed([head + body + (GET + b"\r\n") * 3], answers=4)
    assert (answer.count(OK), over) == (4, False)
    assert max(sizes) == most_bytes
    assert most_bytes < 64 * 1024 or len(head + body) in accumulate(sizes)


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"])
async def test_who_asks_nothing_is_not_kept(before):
    """Neither at the beginning nor behind an answer, however often a byte of a head comes."""
    protocol = _opened(keep_alive_s=0.2)
    protocol.data_received(before + GET)
    await asyncio.sleep(0.05)
    for _ in range(40):
        if not protocol.transport.closing:
            protocol.data_received(b"x: y\r\n")
        await asyncio.sleep(0.01)
    assert protocol.transport.closing
    protocol.connection_lost(None)


@pytest.mark.parametrize("asked", [GET + b"\r\n", 2 * (GET + b"\r\n"), POST])
async def test_who_waits_for_an_answer_is_kept(asked):
    """However long the answer takes, and the sending of a body; also the second of two requests at once."""
    go_on = asyncio.Event()

    async def slow(scope, receive, send):
        await asyncio.sleep(0.05)
        if protocol.transport.sent or asked.count(b"GET") < 2:
            await go_on.wait()
        await _app(scope, receive, send)

    protocol = _opened(slow, keep_alive_s=0.1)
    protocol.data_received(asked)
    await asyncio.sleep(0.5)
    assert not protocol.transport.closing
    go_on.set()
    protocol.data_received(b"0\r\n\r\n" if asked is POST else b"")
    await _turns()
    assert protocol.transport.sent.count(OK) == max(1, asked.count(b"GET"))
    protocol.connection_lost(None)


@pytest.mark.parametrize("offer", [b"h2c", b"TLS/1.2", b"h2c, websocket"])
@pytest.mark.parametrize("framing", [b"Content-Length: 20", b"Transfer-Encoding: chunked"])
async def test_an_offer_to_speak_another_protocol_costs_no_body(offer, framing):
    """Java's and Apache's clients make one with every upload; what looks like one inside a body stays."""
    body = b"a\r\nUpgrade: h2c\r\n\r\nb"
    seen = []

    async def app(scope, receive, send):
        message, whole = {"more_body": True}, b""
        while message.get("more_body"):
            message = await receive()
            whole += message.get("body", b"")
        seen.append(whole)
        await _app(scope, lambda: asyncio.sleep(0, {}), send)

    protocol = _opened(app)
    lines = [b"POST / HTTP/1.1", b"Host: x", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + offer, framing]
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    sent = body if b"Length" in framing else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    for _ in range(2):  # over one connection, the body apart and with the head
        protocol.data_received(head)
        protocol.data_received(sent)
        await _turns()
        protocol.data_received(head + sent)
        await _turns()
    assert seen == [body] * 4
    protocol.connection_lost(None)


@pytest.mark.parametrize("cut", range(1, 110, 6))
async def test_such_an_offer_may_come_in_pieces(cut):
    """The offer may come after another request, or in the last one of its connection."""
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["http_version"], (await receive())["body"]))
        await _app(scope, lambda: asyncio.sleep(0, {}), send)

    data = GET + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\nhi"
    last = data.replace(b": Upgrade", b": Upgrade, close"), data.replace(b"HTTP/1.1", b"HTTP/1.0")
    for sent in (data, GET + b"\r\n" + data, *last):
        protocol = _opened(app)
        protocol.data_received(sent[:cut])
        protocol.data_received(sent[cut:])
        await _turns()
        assert seen.pop() == ("1.0" if sent == last[1] else "1.1", b"hi")
        protocol.connection_lost(None)


async def test_no_handshake_takes_over_an_answer():
    """The answer would be written to the socket's client."""
    protocol = _opened(_never)
    protocol.data_received(GET + b"\r\n" + GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    await _turns()
    assert protocol.transport.closing
    assert protocol.transport.get_protocol() is protocol
    protocol.connection_lost(None)


@pytest.mark.parametrize("line", [b"Upgrade: websocket", b"upgrade:WebSocket", b"UPGRADE: \twebsocket"])
async def test_a_handshake_is_no_such_offer(line, monkeypatch):
    """However it is written: the socket's protocol takes over."""
    taken = []
    protocol = _opened()
    monkeypatch.setattr(protocol, "handle_websocket_upgrade", lambda: taken.append(line))
    protocol.data_received(GET + b"Connection: Upgrade\r\n" + line + b"\r\n\r\n")
    assert taken == [line]
    protocol.connection_lost(None)


class _Socket(asyncio.Protocol):
    """Keeps what it gets, as the WebSocket's protocol."""

    def __init__(self, **options):
        self.received = b""

    def data_received(self, data):
        self.received += data


@pytest.mark.parametrize("part_bytes", [1, 7, 100, 4_096, 1 << 20])
async def test_frames_sent_with_the_handshake_come_after_it(part_bytes, monkeypatch):
    """A client should wait for the answer. All that one sends before is kept, however it arrives."""
    protocol, frames = _opened(), b"\x81\x85\0\0\0\0Hello" * 10_000
    monkeypatch.setattr(protocol, "ws_protocol_class", _Socket)
    data = GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + frames
    for at in range(0, len(data), part_bytes):
        protocol.transport.get_protocol().data_received(data[at : at + part_bytes])
    await _turns()
    head, _, rest = protocol.transport.get_protocol().received.partition(b"\r\n\r\n")
    assert head.startswith(b"GET / HTTP/1.1\r\n")
    assert rest == frames


async def _never(scope, receive, send):
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_requests_behind_an_answer_wait_unparsed():
    """However many a client sends: one part of them at most is queued, and all of them are answered in order."""
    gate, seen = asyncio.Event(), []

    async def app(scope, receive, send):
        await gate.wait()
        seen.append(scope["query_string"])
        await _refuse(scope, receive, send)

    protocol, count = _opened(app), 2_000
    protocol.data_received(b"".join(b"GET /?%d HTTP/1.1\r\n\r\n" % n for n in range(count)))
    await _turns()
    assert 100 < len(protocol.pipeline) < 250
    assert not protocol.transport.is_reading
    gate.set()
    async with asyncio.timeout(30):
        while len(seen) < count:  # noqa: ASYNC110 - the app sets no event
            await asyncio.sleep(0)
    assert seen == [b"%d" % n for n in range(count)]
    await _turns()
    assert protocol.transport.is_reading
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("name", "data", "count"),
    [("_REQUEST_REST_S", (GET + b"\r\n") * 5, 4), ("_SLICE_REST_S", POST + b"1\r\nx\r\n" * 4_000 + b"0\r\n\r\n", 5)],
)
async def test_who_sends_without_end_is_served_with_rests(monkeypatch, name, data, count):
    """The event loop goes on after each request ahead of its answer, and after each slice."""
    monkeypatch.setattr(http_protocol, name, 0.02)
    monkeypatch.setattr(http_protocol, "SLICE_S", 0)
    protocol, began_s = _opened(), time.monotonic()
    protocol.data_received(data)
    async with asyncio.timeout(10):
        while protocol.transport.sent.count(OK) < data.count(b" / "):  # noqa: ASYNC110 - the transport sets no event
            await asyncio.sleep(0.001)
    assert time.monotonic() - began_s >= count * 0.02
    protocol.connection_lost(None)


async def test_others_have_their_turn_while_much_is_parsed(monkeypatch):
    """Nothing more is read meanwhile, and nothing is lost."""
    monkeypatch.setattr(http_protocol, "SLICE_S", 0)
    protocol = _opened()
    body, turns = 4_000 * b"1\r\na\r\n", 0
    protocol.data_received(POST + body + b"0\r\n\r\n")
    while protocol._unparsed:
        assert not protocol.transport.is_reading
        turns += 1
        await asyncio.sleep(0)
    assert turns >= len(body) // 4_096
    await _turns()
    assert protocol.transport.is_reading
    assert protocol.transport.sent.count(OK) == 1
    protocol.connection_lost(None)


async def test_a_client_that_leaves_takes_its_queue_along():
    """The request that is answered is told, and no other one begins."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])
        await _never(scope, receive, send)
        seen.append("told")

    protocol = _opened(app)
    protocol.data_received(3 * (GET + b"\r\n"))
    await _turns()
    protocol.transport.close()
    protocol.connection_lost(None)
    await _turns()
    assert seen == ["http", "told"]


async def test_an_answer_is_over_when_it_is_written():
    """An answer that its client does not read so keeps its place in the quota."""
    done = []

    async def app(scope, receive, send):
        await _refuse(scope, receive, send)
        done.append(True)

    protocol = _opened(app)
    protocol.transport.unread = 1_000
    protocol.data_received(GET + b"\r\n")
    await _turns()
    assert not done
    protocol.transport.unread = 0
    protocol.resume_writing()
    await _turns()
    assert done
    assert protocol.transport.sent.endswith(b"\r\n\r\nno")
    protocol.connection_lost(None)


@pytest.mark.parametrize(("end", "is_closed"), [(b"1\r\na\r\n", True), (b"0\r\n\r\n", False)])
async def test_a_body_that_nobody_needs_has_an_end(monkeypatch, end, is_closed):
    """The body's request is answered. It has a while to end, and the connection is kept if it does."""
    monkeypatch.setattr(http_protocol, "_REST_S", 0.1)
    protocol = _opened(_refuse)
    protocol.data_received(POST)
    await _turns()
    protocol.data_received(b"1\r\na\r\n")
    protocol.data_received(end)
    await asyncio.sleep(0.3)
    assert protocol.transport.closing is is_closed
    protocol.connection_lost(None)


async def test_a_head_has_a_limit_of_lines():
    """A line costs the time of all that look for one."""
    for count, answer in ((255, OK), (256, b"HTTP/1.1 400 ")):
        given, _, _ = await _fed([GET + b"a: b\r\n" * count + b"\r\n"])
        assert given.startswith(answer)


@pytest.mark.parametrize("second", [b"Host: other", b"host: localhost", b"HOST:"])
async def test_a_head_has_one_host(second):
    """A proxy in front may have let the request pass because of the other one."""
    given, _, _ = await _fed([GET + second + b"\r\n\r\n"])
    assert given.startswith(b"HTTP/1.1 400 ")


async def _sizes(app, read):
    """Return what a client that `read`s got of an answer larger than all buffers, over a real connection."""
    config = uvicorn.Config(app, log_config=None)
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: HttpProtocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, GET + b"\r\n")
            return await read(loop, client)


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

    config = uvicorn.Config(app, log_config=None)
    config.load()
    server = await loop.create_server(lambda: Closing(config, ServerState(), {}), "127.0.0.1", 0)
    async with server:
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await loop.sock_sendall(client, GET + b"\r\n")
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
    """A client that reads slowly gets everything."""
    monkeypatch.setattr(http_protocol, "_UNREAD_S", 1)
    ended, size = set(), 1_000_000

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})
        await receive()
        ended.add(scope["client"])

    async def nothing(loop, client):
        async with asyncio.timeout(20):
            while client.getsockname() not in ended:  # noqa: ASYNC110 - the app sets no event
                await asyncio.sleep(0.05)

    async def slowly(loop, client):
        parts, began_s = [], loop.time()
        while sum(map(len, parts)) < size:
            parts.append(await loop.sock_recv(client, 65_536))
            assert parts[-1]
            if loop.time() - began_s < 1.6:
                await asyncio.sleep(0.2)
        return sum(map(len, parts))

    _, got = await asyncio.gather(_sizes(app, nothing), _sizes(app, slowly))
    assert got > size


async def _answered(app, data, *, eof=False):
    """Return an app's answer as it is on the wire, and whether the connection is over."""
    protocol = _opened(app)
    protocol.data_received(data)
    await _turns()
    if eof:
        assert protocol.eof_received()
        await _turns()
    found = protocol.transport.sent, protocol.transport.closing
    protocol.connection_lost(None)
    return found


async def test_http_1_0_gets_no_interim_answer():
    """Clients of that version do not know 100."""
    sent, _ = await _answered(_app, POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n")
    assert sent.startswith(OK)
    head = b"POST / HTTP/1.%d\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    assert await _answered(_app, head % 0) == (b"", False)
    assert (await _answered(_app, head % 1))[0].startswith(b"HTTP/1.1 100 ")


async def _refuse(scope, receive, send):
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


async def test_an_answer_that_ends_with_the_callers_side_is_no_error(caplog):
    """The answer begins at the moment in which the client ends its side, and is then cancelled."""

    async def begins(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})

    protocol = _opened(begins)
    protocol.data_received(GET + b"\r\n")
    await _turns()
    assert protocol.eof_received()
    await _turns()
    assert protocol.transport.is_closing()
    assert "without completing" not in caplog.text


async def test_a_client_that_ends_its_side_is_not_kept_by_an_app_without_an_answer():
    """The app has no answer where a response is not worth sending any more."""

    async def app(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    assert await _answered(app, GET + b"\r\n", eof=True) == (b"", True)
    protocol = _opened()
    assert not protocol.eof_received()  # before any request: closed at once
    protocol.connection_lost(None)


@pytest.mark.parametrize("cut", range(0, 40, 7))
async def test_trailers_are_no_headers(cut):
    """A key after the body opens nothing, however it arrives. The next request has headers again."""
    seen = []

    async def app(scope, receive, send):
        await _app(scope, receive, send)
        seen.append(dict(scope["headers"]))

    protocol = _opened(app)
    trailers = b"0\r\nAuthorization: Bearer key\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n"
    for piece in (POST, b"2\r\n{}\r\n" + trailers[:cut], trailers[cut:], GET + b"Authorization: Bearer key\r\n\r\n"):
        protocol.data_received(piece)
        await _turns()
    assert seen == [{b"host": b"x", b"transfer-encoding": b"chunked"}, {b"host": b"x", b"authorization": b"Bearer key"}]
