"""`POST /v1/audio/speech/clone`, with the scripted engine: it imitates a voice by a tone of its strongest frequency."""

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.wire import exchange, post

ROUTE = "/v1/audio/speech/clone"
VOICE = np.tile(recordings.samples(), 4)[: 4 * 16_000]


@pytest.fixture(scope="module")
def server(start):
    """eSpeak NG speaks, and the scripted engine imitates."""
    with start(SPEECH="espeak", SPEECH_CLONE_MODEL="fake") as server:
        yield server


def clone(server, file=None, **fields):
    sent = {"input": "Hello there, how are you?", "response_format": "pcm"} | fields
    answer = server.post(ROUTE, file or recordings.wav(VOICE), **sent)
    assert answer.status_code == 200, answer.text
    return answer


def spoken(server, *args, **fields):
    return np.frombuffer(clone(server, *args, **fields).content, "<i2") / 32_768


def strongest_hz(samples, rate):
    return np.abs(np.fft.rfft(samples * np.hanning(len(samples)))).argmax() * rate / len(samples)


@pytest.mark.parametrize(("container", "codec", "rate"), [("flac", "flac", 44_100), ("ogg", "libopus", 48_000)])
def test_the_answer_imitates_the_recording(server, container, codec, rate):
    """Whatever its container and rate: its strongest frequency is that of the answer."""
    file = recordings.encoded(container, codec, VOICE, rate=rate)
    found = strongest_hz(spoken(server, file), 24_000)
    assert found == pytest.approx(strongest_hz(VOICE, 16_000), rel=0.01)


def test_the_fields_of_speech_have_their_effect(server):
    """The seed, speed, instructions, the format and the form of the stream. Equal requests have equal answers."""
    plain = spoken(server, ref_text="one")
    assert np.array_equal(spoken(server, ref_text="one"), plain)
    assert not np.array_equal(spoken(server, ref_text="one", seed="7"), plain)
    assert len(spoken(server, speed="2")) == pytest.approx(len(plain) / 2, rel=0.02)
    assert np.abs(spoken(server, instructions="Loud.")).max() > 2 * np.abs(plain).max()
    opus = clone(server, response_format="opus")
    assert (opus.headers["Content-Type"], opus.content[:4]) == ("audio/ogg", b"OggS")
    assert "speech.audio.done" in clone(server, stream_format="sse").text.splitlines()[-2]


def test_a_recording_over_32_mib_is_refused(server):
    assert _head(server, 33 * 2**20).startswith(b"HTTP/1.1 413")


def test_a_server_that_does_not_imitate_says_so_before_it_reads(live_server):
    """Of ten megabytes that are announced none is sent, and the answer comes."""
    head = _head(live_server, 10_000_000)
    assert head.startswith(b"HTTP/1.1 501")
    assert b"speech_unavailable" in head


def _head(server, size):
    """Return the answer to a request whose body never arrives."""
    return exchange(server, post(b"", path=ROUTE, length=size))
