"""Long texts of callers do little on the event loop, whatever they are: the work of each step is counted."""

import json
import sys
import threading
from contextlib import suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from E2Etest.drive import recordings
from E2Etest.drive.session import connected, data

# Calls of functions in one step of the event loop, in Python and in C.
MOST_CALLS = 5_000
CHARS = 200_000
TEXTS = {
    "words": "the quick brown fox " * (CHARS // 20),
    "brackets": "a" + "(" * CHARS,
    "Han": "\u4e2d" * CHARS,
}


class LoopWork:
    """The profiler of the event loop's thread: counts the calls of each step, which begins in the loop's own frame."""

    def __init__(self):
        self.most, self.where, self._calls, self._first = 0, (), 0, None

    def __call__(self, frame, event, argument):
        """Take the first event of a thread."""
        sys.setprofile(self._count if threading.current_thread().name == "server" else None)

    def _count(self, frame, event, argument):
        if event == "call":
            if frame.f_back is None or frame.f_back.f_code.co_name == "run":
                self._calls, self._first = 0, frame.f_code
            self._calls += 1
            if self._calls > self.most:
                self.most, self.where = self._calls, (self._first, frame.f_code)
        elif event == "c_call":
            self._calls += 1


@pytest.fixture(scope="module")
def work():
    return LoopWork()


@pytest.fixture(scope="module")
def server(start, work):
    threading.setprofile(work)
    try:
        with start() as server:
            for path, body in _requests("hello"):  # what is imported and made with the first
                _send(server, path, body)
            yield server
    finally:
        threading.setprofile(None)


def _send(server, path, body):
    with suppress(httpx.TransportError), server.client.stream("POST", path, timeout=20, **body):
        pass


def _requests(text):
    audio = recordings.sample()[0]
    file = {"file": ("a.wav", audio)}
    lines = [{"start": n, "end": n + 1, "text": text[n * 200 : n * 200 + 200]} for n in range(len(text) // 200)]
    yield "/v1/audio/alignments", {"files": {**file, "text": ("t.txt", text.encode())}}
    yield "/v1/audio/alignments", {"files": {**file, "text": ("t.txt", text[:1_100].encode())}}
    large = {"file": ("a.wav", audio + bytes(1_500_000))}  # its size allows a long text
    yield "/v1/audio/alignments", {"files": {**large, "text": ("t.txt", text.encode())}}
    for field in ("prompt", "hotwords", "language", "model"):
        yield "/v1/audio/transcriptions", {"files": file, "data": {field: text[:15_999]}}
    yield "/v1/speakers", {"files": {"files": ("a.wav", audio)}, "data": {"name": text[:60_000], "consent": text}}
    yield "/v1/text/documents", {"json": {"format": "json", "segments": lines, "title": text[:1_000]}}
    yield "/v1/text/documents", {"json": {"format": "docx", "segments": [{"start": 0, "end": 1, "text": text}]}}
    yield "/v1/audio/speech", {"json": {"input": text[:19_000], "response_format": "pcm"}}
    yield "/v1/audio/speech/jobs", {"json": {"input": text}}
    yield "/v1/audio/speech", {"json": {"input": "hello", "language": text, "voice": text}}
    yield "/v1/realtime/client_secrets", {"json": {"session": {"type": "transcription", "prompt": text[:15_000]}}}
    yield "/v1/jobs", {"files": file, "data": {"prompt": text[:15_999]}}


@pytest.mark.slow("counts every call of a server")
@pytest.mark.parametrize("name", TEXTS)
def test_long_texts_do_little_on_the_event_loop(server, work, name):
    text = TEXTS[name]
    for path, body in _requests(text):
        work.most = 0
        _send(server, path, body)
        assert work.most < MOST_CALLS, (path, list(body.get("data", {})), work.where)
    session = {"type": "transcription", "audio": {"input": {"transcription": {"prompt": text[:15_000]}}}}
    messages = [
        {"action": "config", "hotwords": text[:15_999]},
        {"type": "text", "text": text[:8_000]},  # all of it would be spoken
        {"type": "session.update", "session": session},
    ]
    for path in ("/ws/transcribe", "/ws/speech", "/v1/realtime"):
        with suppress(ConnectionClosed), connected(server, path, close_timeout=1) as socket:
            for message in messages:
                socket.send(json.dumps(message))
            socket.send(data(recordings.samples()))
            pong, heard = socket.ping(), ""
            while not pong.wait(0.05) and isinstance(heard, str):  # what speaks a long text does not read on meanwhile
                with suppress(TimeoutError):
                    heard = socket.recv(timeout=0.05)
        assert work.most < MOST_CALLS, (path, work.where)
