"""Spoken answers that were kept."""

import io
import wave

import numpy as np
import pytest
import soundfile


@pytest.fixture(scope="module")
def speaking(start):
    """A server that speaks with eSpeak NG and keeps answers."""
    with start(SPEECH="espeak", AUDIO_CACHE_MB="8") as server:
        yield server


def test_kept_files_state_their_length(speaking):
    """Those that are sent first cannot: libsndfile reads no such FLAC stream, and `wave` reports 2^31 samples."""

    def kept(response_format):
        body = {"input": "One. Two, three.", "response_format": response_format}
        first, second = (speaking.client.post("/v1/audio/speech", json=body) for _ in range(2))
        assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit"), first.text
        assert len(first.content) == len(second.content)
        return io.BytesIO(second.content)

    samples, rate = soundfile.read(kept("flac"), dtype="int16")
    assert rate == 24_000
    assert samples.any()
    with wave.open(kept("wav")) as reader:
        assert reader.getnframes() == len(samples)
        assert np.array_equal(np.frombuffer(reader.readframes(len(samples)), "<i2"), samples)


def test_what_is_kept_is_kept_for_one_key(start):
    """Another key does not learn from the header or the time that a text was spoken."""
    body = {"input": "A secret.", "response_format": "pcm"}
    with start(SPEECH="espeak", API_KEYS="sk-first,sk-second") as server:
        asked = [
            server.client.post("/v1/audio/speech", json=body, headers={"Authorization": f"Bearer sk-{key}"})
            for key in ("first", "second", "first")
        ]
    assert [answer.headers["x-cache"] for answer in asked] == ["miss", "miss", "hit"]
    assert len({answer.content for answer in asked}) == 1


def test_what_has_no_effect_is_named(speaking):
    """eSpeak NG follows no instructions; clients send them all the same."""
    body = {"input": "Three.", "response_format": "pcm"}
    plain, told = (
        speaking.client.post("/v1/audio/speech", json=body | more) for more in ({}, {"instructions": "Whisper."})
    )
    assert "x-ignored" not in plain.headers
    assert told.headers["x-ignored"] == "instructions"
    assert told.content == plain.content
