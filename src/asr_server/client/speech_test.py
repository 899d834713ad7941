"""The blocking speech client against servers that fail; the other one is tested with the bridge, which uses it."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from asr_server.client.connection import FileError
from asr_server.client.speech import SpeakingVoice, SpeechClient


@contextmanager
def _answering(body, status=200, length=None):
    """Return a server that answers everything with these bytes, whose `length` it announces, and what it was sent."""
    sent = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            with SpeechClient(f"http://127.0.0.1:{server.server_port}") as client:
                yield client, sent
        finally:
            server.shutdown()
            thread.join()


def test_only_what_is_stated_is_sent():
    """The rest is the server's to decide; half a character reaches it too."""
    with _answering(b"ID3") as (client, sent):
        assert b"".join(client.stream("Hello.\ud83d", voice="nova", format="flac")) == b"ID3"
    assert sent == [{"input": "Hello.\ud83d", "voice": "nova", "response_format": "flac"}]


def test_a_refusal_keeps_its_code():
    """The refusal comes before any audio."""
    body = b'{"error": {"message": "No.", "type": "x", "param": "voice", "code": "invalid_value"}}'
    with _answering(body, 400) as (client, _), pytest.raises(FileError, match=r"No\.") as refusal:
        next(client.stream("Hello."))
    assert refusal.value.code == "invalid_value"


def test_audio_that_breaks_off_is_an_error():
    """The audio before the end was whole."""
    with _answering(b"12", length=10) as (client, _):
        pieces = client.stream("Hello.")
        assert next(pieces) == b"12"
        with pytest.raises(FileError) as error:
            next(pieces)
    assert error.value.code == "connection_lost"


def test_voices_have_the_name_that_they_stand_for():
    """A voice's own name stands for none."""
    listed = [
        {"id": "alloy", "object": "voice", "description": "a man", "languages": ["en"], "alias_of": "m3"},
        {"id": "m3", "object": "voice", "description": "a man", "languages": ["en"], "alias_of": None},
    ]
    with _answering(json.dumps({"object": "list", "data": listed}).encode()) as (client, _):
        assert client.voices() == [
            SpeakingVoice("alloy", "a man", ("en",), "m3"),
            SpeakingVoice("m3", "a man", ("en",)),
        ]


def test_a_server_that_does_not_speak_says_so():
    """The error's code says so."""
    body = b'{"error": {"message": "Silent.", "type": "x", "param": null, "code": "speech_unavailable"}}'
    with _answering(body, 501) as (client, _), pytest.raises(FileError) as error:
        client.voices()
    assert error.value.code == "speech_unavailable"
