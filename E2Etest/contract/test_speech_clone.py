"""`POST /v1/audio/speech/clone`, with the scripted engine: it imitates a voice by a tone of its strongest frequency."""

import json
import socket

import httpx
import numpy as np
import pytest

from E2Etest.drive import recordings

ROUTE = "/v1/audio/speech/clone"
TEXT = "Hello there, how are you?"
VOICE = np.tile(recordings.samples(), 4)[: 4 * 16_000]
SCRIPT = {"speech": {"rules": [{"text": "fail", "fault": "raise"}, {"text": "full", "fault": "memory"}]}}


@pytest.fixture(scope="module")
def server(start, tmp_path_factory):
    """eSpeak NG speaks, and the scripted engine imitates."""
    path = tmp_path_factory.mktemp("script") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    with start(SPEECH="espeak", SPEECH_CLONE_MODEL="fake", FAKE_ENGINE_SCRIPT=str(path)) as server:
        yield server


def clone(server, file=None, **fields):
    """The answer; a field of None is left out."""
    sent = {"input": TEXT, "response_format": "pcm"} | fields
    content = recordings.wav(VOICE) if file is None else file
    files = {"file": ("voice", content)} if content else {"other": ("voice", b"x")}
    return server.client.post(ROUTE, data={k: v for k, v in sent.items() if v is not None}, files=files)


def spoken(server, *args, **fields):
    answer = clone(server, *args, **fields)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<i2") / 32_768


def strongest_hz(samples, rate):
    return np.abs(np.fft.rfft(samples * np.hanning(len(samples)))).argmax() * rate / len(samples)


@pytest.mark.parametrize(
    ("container", "codec", "rate"),
    [("wav", "pcm_s16le", 16_000), ("flac", "flac", 44_100), ("ogg", "libopus", 48_000), ("mp3", "libmp3lame", 22_050)],
)
def test_the_answer_imitates_the_recording(server, container, codec, rate):
    """Whatever its container and rate: its strongest frequency is that of the answer."""
    file = recordings.encoded(container, codec, VOICE, rate=rate)
    found = strongest_hz(spoken(server, file), 24_000)
    assert found == pytest.approx(strongest_hz(VOICE, 16_000), rel=0.01)


def test_the_same_request_has_the_same_answer_and_another_seed_another(server):
    """The samples are equal, or not."""
    first, again, other = (clone(server, ref_text="one", seed=seed).content for seed in ("1", "1", "7"))
    assert again == first
    assert other != first


def test_the_fields_of_speech_have_their_effect(server):
    """Speed, instructions, the format and the form of the stream."""
    plain = spoken(server)
    assert len(spoken(server, speed="2")) == pytest.approx(len(plain) / 2, rel=0.02)
    assert np.abs(spoken(server, instructions="Loud.")).max() > 2 * np.abs(plain).max()
    for name, media_type, magic in (("mp3", "audio/mpeg", b"\xff"), ("opus", "audio/ogg", b"OggS")):
        answer = clone(server, response_format=name)
        assert (answer.headers["Content-Type"], answer.content[: len(magic)]) == (media_type, magic)
    events = clone(server, stream_format="sse")
    assert "speech.audio.done" in events.text.splitlines()[-2]


def test_other_bodies_and_uploads_are_refused(server):
    """JSON, and a declared length over 32 MiB."""
    answer = server.client.post(ROUTE, json={"input": TEXT})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_content_type")
    head = _head(server, 33 * 2**20)
    assert head.startswith(b"HTTP/1.1 413")


def test_a_server_that_does_not_imitate_says_so_before_it_reads(start):
    """Of ten megabytes that are announced none is sent, and the answer comes."""
    with start() as server:
        answer = httpx.post(f"{server.base}{ROUTE}", data={"input": TEXT}, files={"file": b"x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "speech_unavailable")
        assert _head(server, 10_000_000).startswith(b"HTTP/1.1 501")


def _head(server, size):
    """The first bytes of the answer to a request whose body does not come."""
    request = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {size}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request.encode())
        return connection.recv(1024)
