"""Texts to audio events, against a server whose answers do not end. Others are in E2Etest/contract/conversations."""

import itertools
import json
import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.tts import Synthesize

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.wyoming import wyoming
from asr_server.features.wyoming.speech_session import ServerTarget, SpeechAnswer, SpeechRequests

_WAIT_S = 30


class _Handler(BaseHTTPRequestHandler):
    """Answers "Wait" with one sample and then nothing, other texts with more than buffers hold."""

    def do_POST(self):
        self.server.texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"])
        self.send_response(200)
        self.send_header("Content-Length", str(10**9))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(b"\0\0")
            if self.server.texts[-1] == "Wait":
                self.rfile.read(1)
            else:
                for _ in range(10**3):
                    self.wfile.write(bytes(10**6))
        self.server.left.set()

    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def _serving(server):
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server():
    """`texts` are those that it got. When the client of one leaves, it sets `left`."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    made.texts, made.left, made.address = [], threading.Event(), f"http://127.0.0.1:{made.server_port}"
    with _serving(made):
        yield made


def test_closing_ends_the_request_that_is_running(server):
    """The request ends also while the server says nothing; texts after it are not asked for."""
    written = queue.Queue()
    requests = SpeechRequests(ServerTarget(server.address), written.put)
    for text in ("Wait", "Never"):
        requests.handle(Synthesize(text=text).event())
    assert [written.get(timeout=_WAIT_S).event().type for _ in range(2)] == ["audio-start", "audio-chunk"]
    requests.close()
    assert server.left.wait(_WAIT_S)
    assert server.texts == ["Wait"]


def test_a_client_that_waits_for_its_turn_is_let_go_when_it_leaves(server):
    """Many texts wait, and writing to the client fails: putting in more does not block for ever."""
    requests = SpeechRequests(ServerTarget(server.address), Mock(side_effect=BrokenPipeError))
    for _ in range(200):
        requests.handle(Synthesize(text="Yes").event())
    requests.close()
    assert server.texts == ["Yes"]


@pytest.mark.slow("fills the buffers of a socket")
def test_a_client_that_does_not_read_is_disconnected(monkeypatch, server):
    """The client has some time, and its request ends then."""
    monkeypatch.setattr(wyoming, "_SEND_TIMEOUT_S", 1)
    with (
        _serving(wyoming.Bridge("127.0.0.1", 0, wyoming.BridgeTarget(server.address))) as bridge,
        socket.create_connection(("127.0.0.1", bridge.port), timeout=_WAIT_S) as client,
    ):
        client.sendall(b'{"type": "synthesize", "data": {"text": "Long."}}\n')
        assert server.left.wait(_WAIT_S)


def test_a_connection_beyond_the_limit_is_closed_until_another_ends(monkeypatch, server):
    monkeypatch.setattr(wyoming, "_MAX_CONNECTIONS", 1)
    with _serving(wyoming.Bridge("127.0.0.1", 0, wyoming.BridgeTarget(server.address))) as bridge:

        def answer():
            with socket.create_connection(("127.0.0.1", bridge.port), timeout=_WAIT_S) as client:
                with suppress(ConnectionError):
                    client.sendall(b'{"type": "ping"}\n')
                    return client.recv(1_000)
                return b""

        with socket.create_connection(("127.0.0.1", bridge.port), timeout=_WAIT_S) as first:
            first.sendall(b'{"type": "ping"}\n')
            assert b"pong" in first.recv(1_000)
            assert not answer()
        while not answer():
            time.sleep(0.01)


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, 20_000), max_size=8))
def test_how_the_samples_are_cut_changes_nothing(cuts):
    """The samples are cut also inside one; no chunk has half of one, or more than a tenth of a second."""
    samples = bytes(range(256)) * 78
    edges = [0, *sorted(min(cut, len(samples)) for cut in cuts), len(samples)]
    written = []
    answer = SpeechAnswer({}, streamed=False)
    for a, b in itertools.pairwise(edges):
        answer.audio(samples[a:b], written.append)
    answer.end(written.append)
    chunks = [chunk.audio for chunk in written[1:-1]]
    assert b"".join(chunks) == samples
    assert all(len(chunk) % 2 == 0 and len(chunk) <= SPEECH_RATE // 10 * 2 for chunk in chunks)
