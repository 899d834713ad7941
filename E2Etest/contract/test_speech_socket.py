"""`WS /ws/speech` with eSpeak NG: sockets that say nothing or do not read, and the end of the server."""

import json
import socket as sockets
from contextlib import contextmanager

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from asr_server.features.speech_output import session, speech_socket
from E2Etest.exposition import scrape, value

pytestmark = pytest.mark.websocket

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
    """All messages up to one of type `last`, binary frames as bytes. The end of the socket is `closed`."""
    heard = []
    while not heard or isinstance(heard[-1], bytes) or heard[-1]["type"] != last:
        try:
            frame = peer.recv(timeout=TIMEOUT_S)
        except ConnectionClosed as closed:
            assert last == "closed"
            return [*heard, {"type": "closed", "code": closed.rcvd.code}]
        heard.append(frame if isinstance(frame, bytes) else json.loads(frame))
    return heard


def close_code(peer):
    """How the server closes the socket, whatever it sends before."""
    return hear(peer, "closed")[-1]["code"]


def is_idle(server):
    """Return True if the engine, its queue, the encoder and the admission hold nothing of any request."""
    snapshot = server.speech.engines.named[0].thread.snapshot()
    engine = snapshot.running or any(snapshot.depth.values())
    return not (engine or server.speech.encoder.streams or server.speech.texts or server.speech.admission.held_s)


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
    """The server sends no other sentence, and closes the socket with 1001."""
    with start() as server, opened(server) as peer:
        say(peer, "text", text=LONG)
        hear(peer, "sentence")
        server.begin_to_stop()
        *_, end, closed = hear(peer, "closed")
        assert closed["code"] == 1001
        assert (end["type"], end["index"] < 39) == ("sentence_done", True)
