"""Texts to audio events, against a server that says what it was asked and answers what the test wants."""

from __future__ import annotations

import itertools
import json
import queue
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.audio import AudioChunk
from wyoming.event import Event
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop

from asr_server.core.audio import SPEECH_RATE
from asr_server.features.wyoming import wyoming
from asr_server.features.wyoming.speech_session import ServerTarget, SpeechAnswer, SpeechRequests

_WAIT_S = 30


class _Server(ThreadingHTTPServer):
    """Answers a text with its UTF-16. `bodies` are those that it got.

    A text that begins with "Wait" gets one sample and then nothing, one that begins with "Long" gets more than buffers
    hold, until its client leaves, which sets `left`. One that begins with "No" is refused.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies = []
        self.left = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        text = body["input"]
        if text.startswith("No"):
            self._answer(400, b'{"error": {"code": "invalid_value", "message": "No."}}')
        elif text.startswith("Wait"):
            self._head(200, 1_000)
            self.wfile.write(b"\0\0")
            self.wfile.flush()
            if not self.rfile.read(1):
                self.server.left.set()
        elif text.startswith("Long"):
            self._head(200, 10**9)
            try:
                for _ in range(10**3):
                    self.wfile.write(bytes(10**6))
            except OSError:
                self.server.left.set()
        else:
            self._answer(200, text.encode("utf-16-le"))

    def _answer(self, status, body):
        self._head(status, len(body))
        self.wfile.write(body)

    def _head(self, status, length):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_):
        pass


class _Client:
    """Sends events and collects those that answer."""

    def __init__(self, address, language=""):
        self._written = queue.Queue()
        self.requests = SpeechRequests(ServerTarget(address, "", language), self._written.put)

    def send(self, *events):
        for event in events:
            assert self.requests.handle(event if isinstance(event, Event) else event.event())

    def next(self):
        return self._written.get(timeout=_WAIT_S).event()

    def until(self, last):
        """The types of all events up to one of the type `last`, without repeated chunks, and the samples."""
        types, pcm = [], b""
        while not types or types[-1] != last:
            event = self.next()
            if AudioChunk.is_type(event.type):
                pcm += event.payload
            types.append(event.type)
        return [kind for kind, _ in itertools.groupby(types)], pcm


@pytest.fixture(scope="module")
def address():
    """Return where the server listens."""
    with _serving() as server:
        yield _address(server)


@contextmanager
def _serving():
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _address(server):
    return f"http://127.0.0.1:{server.server_port}"


@contextmanager
def _client(address, **more):
    client = _Client(address, **more)
    try:
        yield client
    finally:
        client.requests.close()


_WHOLE = ["audio-start", "audio-chunk", "audio-stop"]


def test_after_an_error_the_answer_ends_and_the_next_is_given(address):
    """Home Assistant waits for the end and for nothing else."""
    with _client(address) as client:
        client.send(SynthesizeStart(), SynthesizeChunk(text="Yes. No. Perhaps. Then"))
        types, pcm = client.until("synthesize-stopped")
        assert types == ["audio-start", "audio-chunk", "error", "audio-stop", "synthesize-stopped"]
        assert pcm == "Yes.".encode("utf-16-le")
        client.send(SynthesizeChunk(text=" more. And"), SynthesizeStop(), Synthesize(text="No"), Synthesize(text="Yes"))
        assert client.until("audio-stop")[0] == ["error", "audio-stop"]
        assert client.until("audio-stop")[0] == _WHOLE


def test_where_no_server_answers_it_is_said():
    """The code is the one for transcripts."""
    with _client("http://127.0.0.1:9") as client:
        client.send(Synthesize(text="a"))
        assert client.next().data["code"] == "server_unreachable"


def test_closing_ends_the_request_that_is_running():
    """The request ends also while the server says nothing; texts after it are not asked for."""
    with _serving() as server, _client(_address(server)) as client:
        client.send(Synthesize(text="Wait."), Synthesize(text="Never."))
        assert [client.next().type, client.next().type] == ["audio-start", "audio-chunk"]
        client.requests.close()
        assert server.left.wait(_WAIT_S)
        assert [body["input"] for body in server.bodies] == ["Wait."]


def test_a_client_that_waits_for_its_turn_is_let_go_when_it_leaves():
    """Many texts wait, and writing to the client fails: putting in more does not block for ever."""
    left = threading.Event()

    def gone(_):
        left.set()
        raise BrokenPipeError

    with _serving() as server:
        requests = SpeechRequests(ServerTarget(_address(server), "", ""), gone)
        for _ in range(200):
            requests.handle(Synthesize(text="Yes").event())
        assert left.is_set()
        requests.close()
        assert len(server.bodies) == 1


@pytest.mark.slow("fills the buffers of a socket")
def test_a_client_that_does_not_read_is_disconnected(monkeypatch):
    """The client has some time, and its request ends then."""
    monkeypatch.setattr(wyoming, "_SEND_TIMEOUT_S", 1)
    with _serving() as server, wyoming.Bridge("127.0.0.1", 0, wyoming.BridgeTarget(_address(server))) as bridge:
        thread = threading.Thread(target=bridge.serve_forever, args=[0.01])
        thread.start()
        try:
            with socket.create_connection(("127.0.0.1", bridge.port), timeout=_WAIT_S) as client:
                client.sendall(b'{"type": "synthesize", "data": {"text": "Long."}}\n')
                assert server.left.wait(_WAIT_S)
        finally:
            bridge.shutdown()
            thread.join()


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
