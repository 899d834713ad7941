"""The protocol's reading side, without a network: frames go in as bytes, the app takes messages."""

import asyncio
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise

import pytest
import uvicorn
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState

from asr_server.net import loop_time, socket_protocol
from asr_server.net.access import Caller
from asr_server.net.conftest import Transport
from asr_server.net.socket_protocol import SocketProtocol

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CLOSE = b"\x88\x82\0\0\0\0\x03\xe8"


async def _app(scope, receive, send):
    await asyncio.Event().wait()


def _begun():
    made = SocketProtocol(uvicorn.Config(_app, log_config=None), ServerState(), {})
    made.connection_made(Transport())
    return made


@asynccontextmanager
async def _offered(caller=None):
    """A connection whose app, which is the test, has not accepted the handshake. `parsed`: the sizes of its parts."""
    made = _begun()
    made.data_received(HANDSHAKE)
    assert await made.receive() == {"type": "websocket.connect"}
    made.scope["state"]["caller"] = caller
    made.parsed, parse = [], made.conn.receive_data
    made.conn.receive_data = lambda data: made.parsed.append(len(data)) or parse(data)
    try:
        yield made
    finally:  # what it holds is counted by its caller, also in the tests after one that fails
        for task in made.tasks:
            task.cancel()
        if made in made.connections:  # it is not lost yet
            made.connection_lost(None)


@asynccontextmanager
async def _opened(caller=None):
    """An open connection, whose app is the test."""
    async with _offered(caller) as made:
        await made.send({"type": "websocket.accept"})
        made.transport.sent = b""
        yield made


@pytest.fixture
async def protocol():
    async with _opened() as made:
        yield made


async def _turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("old", "new", "behind", "status"),
    [
        (b"Host:", b"Content-Length: 5\r\nHost:", b"", b"400"),
        (b"Host:", b"x: y\r\n" * 200 + b"Host:", b"", b"431"),
        (b"Version: 13", b"Version: 12", b"\x81\x85\0\0\0\0Hello", b"4"),
    ],
)
async def test_frames_behind_a_handshake_that_is_refused_are_not_looked_at(old, new, behind, status):
    """And the connection is over: nobody would ever have said another word on it."""
    made = _begun()
    for data in filter(None, (HANDSHAKE.replace(old, new), behind)):
        made.data_received(data)
    assert made.transport.sent.startswith(b"HTTP/1.1 " + status)
    assert (made.transport.closing, made.tasks) == (True, set())
    made.connection_lost(None)


async def test_an_app_is_told_that_a_client_left_before_the_answer_to_its_handshake():
    """Its connection is being closed, and is not lost yet."""
    async with _offered() as offered:
        offered.transport.close()
        with pytest.raises(ClientDisconnected):
            await offered.send({"type": "websocket.accept"})


def _tiny(body):
    return b"".join(b"\x82\x81\0\0\0\0" + bytes([byte]) for byte in body)


async def _taken(protocol, count):
    async with asyncio.timeout(10):
        return [(await protocol.receive())["bytes"] for _ in range(count)]


async def test_few_messages_wait_however_many_come_at_once(protocol):
    """The app gets all messages in order, and reading pauses until then. Data after a close is ignored."""
    body = bytes(range(256)) * 12
    protocol.data_received(_tiny(body) + CLOSE + _tiny(b"x"))
    found = b""
    while len(found) < len(body):
        assert protocol.queue.qsize() < 1_000
        assert not protocol.transport.is_reading
        found += (await protocol.receive())["bytes"]
    assert found == body
    assert (await protocol.receive())["code"] == 1000
    assert protocol.queue.empty()


async def test_text_that_is_no_utf_8_right_before_a_close_frame_ends_the_connection(protocol):
    """Both come at once, so the close frame is answered before the text is looked at."""
    protocol.data_received(b"\x81\x82\0\0\0\0\xff\xfe" + CLOSE)
    assert (await protocol.receive())["type"] == "websocket.disconnect"
    assert protocol.transport.closing


async def test_a_close_is_heard_though_the_app_takes_nothing_any_more(protocol):
    """The app closes while audio waits: the peer's answer to that ends the connection."""
    protocol.data_received(_tiny(bytes(2_000)) + CLOSE)
    await protocol.receive()  # else the peer would be a refused one, which is read no further
    await protocol.send({"type": "websocket.close", "code": 1008})
    await _all_parsed(protocol)
    assert protocol.transport.closing


async def test_nothing_is_kept_of_a_connection_that_is_lost(protocol):
    """The parser would hold the frame that it was reading, in a cycle that only a garbage collection finds."""
    protocol.data_received(b"\x82\xff" + (2**20).to_bytes(8, "big") + bytes(4 + 300_000))
    await _all_parsed(protocol)
    parser = protocol.conn.parser
    assert parser.gi_frame is not None
    protocol.connection_lost(None)
    assert parser.gi_frame is None


# -- peers that send without end ---------------------------------------------------------------------------------------


def _frames(head):
    """As many as arrive at once, each empty and with a mask of zeros."""
    return (bytes([head, 0x80]) + bytes(4)) * (128 * 1024 // 6)


PINGS, PONGS, CONTINUATIONS = _frames(0x89), _frames(0x8A), _frames(0x00)
BEGINNING = b"\x02\x80\0\0\0\0"  # of a message of several frames
PER_TURN = 5_000  # several times what a slice of a fast machine holds, and far less than arrives at once


async def _all_parsed(protocol):
    """Wait until nothing is left to parse. Returns how many bytes of it were parsed at most in one turn of the loop."""
    most = 0
    while not (protocol.transport.is_reading or protocol.transport.closing):
        before = sum(protocol.parsed)
        await asyncio.sleep(0)
        most = max(most, sum(protocol.parsed) - before)
    return most


async def test_few_frames_are_parsed_in_one_turn_of_the_event_loop(protocol):
    """Others get their turn in between, and meanwhile no more is read from the network."""
    protocol.data_received(PINGS)
    assert sum(protocol.parsed) < 6 * PER_TURN
    assert not protocol.transport.is_reading
    assert 0 < await _all_parsed(protocol) < 6 * PER_TURN
    assert sum(protocol.parsed) == len(PINGS)


async def test_a_message_has_a_bounded_number_of_frames(protocol):
    """Empty ones count too. Beyond the bound the connection is closed with 1009. Thousands are right: a client may
    send a long recording in one message, in frames of a TCP segment."""
    protocol.data_received(BEGINNING + CONTINUATIONS[: 6 * 10_000] + b"\x80\x81\0\0\0\0x")
    assert (await protocol.receive())["bytes"] == b"x"
    protocol.data_received(BEGINNING + CONTINUATIONS)
    await _all_parsed(protocol)
    assert (await protocol.receive())["code"] == 1009
    assert protocol.transport.sent.endswith(b"\x03\xf1too many fragments")


@pytest.fixture
async def owing(monkeypatch):
    """The connection of a caller that has taken too much time, while another one has work."""
    monkeypatch.setattr(loop_time, "BEGIN_S", 0.0)  # nor has the connection any time of its own
    times = loop_time.loop_time()
    async with _opened(Caller(share="greedy")) as made:
        with times.working(times.of("other")):
            times.of("greedy").take(1.0)
            yield made


async def test_a_caller_that_owes_time_is_read_later(owing, monkeypatch):
    """Nothing is lost, and messages that the app has already wait as well."""
    received = asyncio.create_task(_taken(owing, 100))
    owing.data_received(_tiny(bytes(range(100))))
    await asyncio.sleep(0.1)
    assert (received.done(), owing.transport.is_reading) == (False, False)
    monkeypatch.setattr(loop_time.loop_time().of("greedy"), "wait_s", lambda: 0.0)
    assert (b"".join(await received), owing.transport.is_reading) == (bytes(range(100)), True)


async def test_the_end_of_a_connection_is_told_though_its_caller_owes_time(owing):
    """Everything that the connection holds is free at once."""
    owing.queue.put_nowait({"type": "websocket.receive", "bytes": b"x"})
    received = asyncio.create_task(owing.receive())
    await asyncio.sleep(0.01)
    assert not received.done()
    owing.connection_lost(None)
    assert (await received)["bytes"] == b"x"
    assert (await owing.receive())["type"] == "websocket.disconnect"


async def test_speech_goes_on_though_other_connections_of_its_caller_owe_time(owing):
    """Audio pays for itself, in either direction."""
    await owing.send({"type": "websocket.send", "bytes": bytes(32_000)})
    owing.data_received(2 * _audio(320))
    assert [*map(len, await _taken(owing, 2))] == [320, 320]


async def test_a_pong_that_was_not_read_is_waited_for_again(owing):
    """A peer that is read later is not taken for a dead one."""
    owing.data_received(b"\x8a\x80\0\0\0\0")
    assert not owing.parsed
    owing.keepalive_timeout()
    assert not owing.transport.sent
    owing.pong_timer.cancel()


@pytest.mark.parametrize("part", [BEGINNING, b"\x82\xfe\x7f\xff\0\0\0\0" + bytes(1_000)], ids=["message", "frame"])
async def test_a_message_has_to_be_complete_in_time(protocol, monkeypatch, part):
    """One that is goes on; of one that is not, nothing is held."""
    monkeypatch.setattr(socket_protocol, "MESSAGE_S", 0.05)
    protocol.data_received(BEGINNING)
    protocol.data_received(b"\x80\x81\0\0\0\0x")
    await protocol.receive()
    await asyncio.sleep(0.1)
    assert not protocol.transport.closing
    protocol.data_received(part)
    async with asyncio.timeout(10):
        assert (await protocol.receive())["code"] == 1008
    assert protocol.transport.sent.endswith(b"\x03\xf0unfinished message")
    assert not protocol.frames


def _part(size, *, begins=True):
    """A frame of a message that has no end."""
    return (b"\x02" if begins else b"\0") + b"\xfe" + size.to_bytes(2) + bytes(4) + bytes(size)


async def test_the_unfinished_messages_of_a_caller_have_a_bound(monkeypatch):
    """The bound counts all connections of a key. Another key has its own, and a finished message counts no more."""
    monkeypatch.setattr(socket_protocol, "UNFINISHED_BYTES", 3_000)
    key = Caller("key", share="key")
    async with _opened(key) as first, _opened(key) as second, _opened(Caller("b", share="b")) as other:
        for connection, size in ((first, 2_500), (other, 2_500), (second, 1_000)):
            connection.data_received(_part(size))
            await _all_parsed(connection)
        assert [one.transport.closing for one in (first, other, second)] == [False, False, True]
        assert second.transport.sent.endswith(b"\x03\xf1too many bytes of unfinished messages")
        async with _opened(key) as third:
            first.data_received(b"\x80\x80\0\0\0\0")
            assert len((await first.receive())["bytes"]) == 2_500
            third.data_received(_part(2_900))
            await _all_parsed(third)
            assert not third.transport.closing
            third.data_received(_part(200, begins=False))
            await _all_parsed(third)
            assert third.transport.closing


def _audio(size):
    """A frame of audio: bytes."""
    if size < 126:
        length = bytes([0x80 | size])
    else:
        length = b"\xfe" + size.to_bytes(2) if size < 2**16 else b"\xff" + size.to_bytes(8)
    return b"\x82" + length + bytes(4) + bytes(size)


async def test_a_frame_of_audio_is_parsed_at_once_and_a_long_one_in_parts(protocol):
    """Short ones share a part. Between two parts others may have their turn."""
    for frames, parts in (([3_200], [3_208]), ([70_000], [4_096] * 17 + [382]), ([10] * 40, [512, 128])):
        protocol.data_received(b"".join(map(_audio, frames)))
        assert [*map(len, await _taken(protocol, len(frames)))] == frames
        assert protocol.parsed == parts
        protocol.parsed.clear()


@pytest.mark.parametrize("step", [1, 3])
async def test_frames_may_be_cut_anywhere(protocol, step):
    """Also inside of their heads, of each of the three kinds."""
    sizes = [0, 125, 126, 5_000, 70_000, 3]
    begins = list(accumulate((len(_audio(size)) for size in sizes), initial=0))
    edges = sorted({begin + offset for begin in begins for offset in range(0, 16, step)} | {begins[-1]})
    data, received = b"".join(map(_audio, sizes)), asyncio.create_task(_taken(protocol, len(sizes)))
    for at, end in pairwise(edges):
        protocol.data_received(data[at:end])
        await asyncio.sleep(0)
    assert [*map(len, await received)] == sizes


async def test_a_refused_peer_is_not_read_on(protocol):
    """This holds however much it sends behind the refusal."""
    await protocol.send({"type": "websocket.close", "code": 3000})
    for _ in range(5):
        protocol.data_received(_tiny(bytes(200)))
    await _turns(20)
    assert sum(protocol.parsed) < len(_tiny(bytes(200)))
    assert not protocol.transport.is_reading


async def test_pings_are_not_answered_while_the_peer_does_not_read(protocol):
    """The answers would be held. They are given when it reads again."""
    protocol.pause_writing()
    protocol.data_received(PINGS)
    await _turns()
    assert (protocol.transport.sent, protocol.transport.is_reading) == (b"", False)
    protocol.resume_writing()
    await _all_parsed(protocol)
    assert protocol.transport.sent == b"\x8a\0" * (len(PINGS) // 6)


async def test_nothing_is_parsed_before_the_handshake_is_complete():
    """A client has to wait for that, which may take as long as a worker needs to start."""
    async with _offered() as offered:
        offered.data_received(PINGS)
        await _turns()
        assert (offered.parsed, offered.transport.is_reading) == ([], False)
        await offered.send({"type": "websocket.accept"})
        await _all_parsed(offered)
        assert offered.transport.sent.endswith(b"\x8a\0" * (len(PINGS) // 6))


@pytest.mark.parametrize("frames", [PONGS, _frames(0x82)], ids=["pongs", "messages"])
async def test_who_sends_without_end_behind_a_close_frame_is_cut_off(protocol, frames):
    """After some thousand frames; the rest is not parsed."""
    protocol.data_received(_tiny(b"x"))
    await protocol.receive()  # else the peer would be a refused one, which is read no further
    await protocol.send({"type": "websocket.close", "code": 1008})
    protocol.data_received(frames)
    await _all_parsed(protocol)
    assert protocol.transport.closing
    protocol.data_received(PONGS)
    assert sum(protocol.parsed) < 6 * 11_000


@pytest.mark.parametrize(("is_heard", "wait_s"), [(False, 2), (True, 10)])
async def test_a_refused_peer_is_waited_for_only_briefly(protocol, is_heard, wait_s):
    """One that is closed before the app has taken a message from it. Others may have sent much that comes first."""
    if is_heard:
        protocol.data_received(_tiny(b"x"))
        await protocol.receive()
    await protocol.send({"type": "websocket.close", "code": 3000})
    assert 0 <= protocol.close_timer.when() - asyncio.get_running_loop().time() <= wait_s
