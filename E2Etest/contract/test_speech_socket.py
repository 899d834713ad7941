"""`WS /ws/speech` with eSpeak NG: samples, barge-in, bounds, access and the end of the server."""

import json
import random
import socket as sockets
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from asr_server.features.speech_output import session, speech_socket
from asr_server.features.speech_output.session import SpeechSessions
from E2Etest.exposition import scrape, value

pytestmark = pytest.mark.websocket

TEXT = (
    "Dr. Smith called at 3 p.m. to confirm. He said: “Come at once!” And then?\n\nIt is 4.5 degrees today; that is"
    " cold. 1. First point\n2. Second point: nothing else. The end"
)
LONG = "And so it goes on and on, for ever and ever. " * 40
TIMEOUT_S = 60


@contextmanager
def opened(server, **options):
    """A socket of the server's key."""
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    url = f"{server.base.replace('http', 'ws', 1)}/ws/speech"
    options = {"additional_headers": headers, "compression": None, "max_size": None, **options}
    with connect(url, **options) as peer:
        yield peer


def say(peer, kind, **fields):
    """Send a message."""
    peer.send(json.dumps({"type": kind, **fields}))


def hear(peer, last):
    """All messages up to one of type `last`, binary frames as bytes."""
    heard = []
    while not heard or isinstance(heard[-1], bytes) or heard[-1]["type"] != last:
        frame = peer.recv(timeout=TIMEOUT_S)
        heard.append(frame if isinstance(frame, bytes) else json.loads(frame))
    for message in heard:
        if not isinstance(message, bytes):  # the reference has it, and all that it holds
            kind = message["type"]
            assert all(f"`{name}`" in speech_socket.SERVER[kind] for name in message if name != "type"), message
    return heard


def audio(heard):
    """The bytes of all binary frames."""
    return b"".join(frame for frame in heard if isinstance(frame, bytes))


def hear_all(peer):
    """All messages up to the close of the socket, and its code."""
    heard = []
    try:
        while True:
            frame = peer.recv(timeout=TIMEOUT_S)
            heard.append(frame if isinstance(frame, bytes) else json.loads(frame))
    except ConnectionClosed as closed:
        return heard, closed.rcvd.code


def close_code(peer):
    """How the server closes the socket, whatever it sends before."""
    return hear_all(peer)[1]


def whole(server, text, path="/stream/pcm", **fields):
    """The answer of a request, which is not kept."""
    answer = server.client.post(f"/v1/audio/speech{path}", json={"input": text, **fields})
    assert answer.status_code == 200, answer.text
    return answer.content


def is_idle(server):
    """Return True if the engine, its queue, the encoder and the admission hold nothing of any request."""
    snapshot = server.speech.engines.named[0].thread.snapshot()
    engine = snapshot.running or any(snapshot.depth.values())
    return not (engine or server.speech.encoder.streams or server.speech.texts or server.speech.admission.held_s)


@pytest.fixture(scope="module")
def speaking(start):
    """Nothing is kept from one answer to the next."""
    with start() as server:
        yield server


@pytest.mark.parametrize("size", [1, 7, None])
def test_a_text_in_any_pieces_has_the_samples_of_the_whole(speaking, size):
    """Character by character, in pieces and at random; the messages say what is in the frames between them."""
    rng = random.Random(3)
    expected = whole(speaking, TEXT)
    with opened(speaking) as peer:
        at = 0
        while at < len(TEXT):
            length = size or rng.randint(1, 60)
            say(peer, "text", text=TEXT[at : at + length])
            at += length
        say(peer, "end")
        heard = hear(peer, "done")
        assert close_code(peer) == 1000
    assert audio(heard) == expected
    messages = [message for message in heard if not isinstance(message, bytes)]
    assert messages[0].items() >= {"type": "started", "sample_rate": 24_000, "format": "pcm", "ignored": []}.items()
    begun = [message for message in messages if message["type"] == "sentence"]
    assert [message["index"] for message in begun] == list(range(len(begun)))
    assert len(begun) == messages[-1]["sentences"] >= 5
    for message in begun:
        before = audio(heard[: heard.index(message)])
        assert message["start_ms"] == round(len(before) / 2 / 24)
    assert messages[-1]["duration_ms"] == round(len(expected) / 2 / 24)


def test_after_a_cancel_nothing_of_the_text_follows(speaking):
    """Not from the engine, whose jobs end; the next text is spoken whole, and the cancelled one was the beginning of
    its own."""
    expected, long = whole(speaking, "Something else."), whole(speaking, LONG)
    with opened(speaking) as peer:
        sent_ms = 0.0
        for _ in range(3):
            say(peer, "text", text=LONG)
            begun = hear(peer, "sentence_done")
            say(peer, "cancel")
            begun += hear(peer, "cancelled")
            sent_ms += len(audio(begun)) / 48
            assert begun[-1]["sent_ms"] == round(sent_ms)
            assert long.startswith(audio(begun))
            speaking.wait_for(lambda _: is_idle(speaking))
            say(peer, "text", text="Something else.")
            say(peer, "flush")
            assert audio(hear(peer, "flushed")) == expected
            sent_ms += len(expected) / 48


def test_what_a_client_leaves_behind_is_cancelled(speaking):
    """A connection that breaks in the middle of a long text."""
    with opened(speaking) as peer:
        say(peer, "text", text=LONG)
        hear(peer, "sentence")
        peer.socket.shutdown(sockets.SHUT_RDWR)
    speaking.wait_for(lambda _: is_idle(speaking) and not len(speaking.services.of(SpeechSessions)))


def test_who_only_connects_costs_nothing(start, monkeypatch):
    """No engine is loaded, and a silent socket ends after its time."""
    monkeypatch.setattr(session, "IDLE_S", 0.5)
    with start() as server, opened(server) as peer:
        error = hear(peer, "error")[-1]["error"]
        assert (error["code"], close_code(peer)) == ("session_expired", 1001)
        assert server.health()["speech_state"] == "unloaded"


def test_a_client_that_does_not_read_is_closed(start, monkeypatch):
    """It is told why by the close code, the error is counted, and its work ends."""
    monkeypatch.setattr(speech_socket, "_SEND_S", 0.5)
    with start(MAX_SPEECH_CHARS="200000") as server:
        small = sockets.socket()
        small.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        small.connect(("127.0.0.1", server.port))
        with opened(server, sock=small, max_queue=1, ping_interval=None) as peer:
            for _ in range(20):
                say(peer, "text", text=LONG)
            server.wait_for(lambda _: _slow_readers(server) == 1)
            server.wait_for(lambda _: is_idle(server))
            assert close_code(peer) == 1008


def _slow_readers(server):
    return value(scrape(server), "asr_errors_total", surface="socket", code="slow_reader")


def test_at_shutdown_the_present_sentence_is_finished(start):
    """And the socket is closed with 1001; what was sent is a whole number of sentences."""
    with start() as server:
        sentence = LONG[: LONG.index(".") + 1]
        alone, two = whole(server, sentence), whole(server, f"{sentence} {sentence}")
        with opened(server) as peer:
            say(peer, "text", text=LONG)
            heard = hear(peer, "sentence")
            server.begin_to_stop()
            rest, code = hear_all(peer)
        heard += rest
        assert code == 1001
        done = [m for m in heard if not isinstance(m, bytes) and m["type"] == "sentence_done"]
        assert len(done) < 40
        assert len(audio(heard)) == len(alone) + (len(done) - 1) * (len(two) - len(alone))
