"""Deepgram's API: recordings over `/v1/listen`, as its clients send and read them."""

import pytest

from E2Etest.drive import recordings


def _text(server):
    files = {"file": ("x.wav", recordings.sample()[0])}
    return server.client.post("/v1/audio/transcriptions", files=files).json()["text"]


def test_a_recording_is_the_body(server):
    """Words with times, in both spellings; the language where it is detected."""
    wav = recordings.sample()[0]
    answer = server.client.post("/v1/listen?model=nova-3&utterances=true&smart_format=true", content=wav)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    (channel,) = found["results"]["channels"]
    (best,) = channel["alternatives"]
    assert (best["transcript"], channel["detected_language"]) == (_text(server), "en")
    assert " ".join(word["punctuated_word"] for word in best["words"]) == best["transcript"]
    times = [time for word in best["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert found["results"]["utterances"][0]["transcript"] in best["transcript"]
    assert found["metadata"]["duration"] == pytest.approx((len(wav) - 44) / 32_000, abs=0.01)
    stated = server.client.post("/v1/listen?language=en", content=wav).json()
    assert "detected_language" not in stated["results"]["channels"][0]


def test_by_default_an_address_of_a_recording_is_not_fetched(server):
    """A clear error says what to do."""
    answer = server.client.post("/v1/listen", json={"url": "http://127.0.0.1/x.wav"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "url")
