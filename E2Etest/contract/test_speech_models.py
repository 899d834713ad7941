"""Names of models that speak, beside those of models for recordings."""

import pytest

from E2Etest.drive import recordings

RECORDINGS, SPEECH = "automatic-speech-recognition", "text-to-speech"


@pytest.fixture(scope="module")
def server(start):
    with start(SPEECH="fake") as server:
        yield server


def speak(server, **fields):
    return server.client.post("/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"} | fields)


def test_every_listed_model_does_what_it_is_for(server):
    """Those of recordings come first. Each can be retrieved by its name."""
    listed = server.client.get("/v1/models").json()["data"]
    tasks = [model["task"] for model in listed]
    assert tasks == sorted(tasks)
    assert set(tasks) == {RECORDINGS, SPEECH}
    for model in listed:
        assert server.client.get(f"/v1/models/{model['id']}").json() == model
        as_speech = speak(server, model=model["id"])
        as_recording = server.transcribe(recordings.sample()[0], model=model["id"])
        expected = (200, 404) if model["task"] == SPEECH else (404, 200)
        assert (as_speech.status_code, as_recording.status_code) == expected, model


def test_a_name_of_the_other_kind_says_where_it_belongs(server):
    """Its code is that of a name that nobody has."""
    error = server.transcribe(recordings.sample()[0], model="tts-1-hd").json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "/v1/audio/speech" in error["message"]
    error = speak(server, model="whisper-1").json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "/v1/audio/transcriptions" in error["message"]


def test_a_silent_server_lists_none(start):
    """Nor does it know their names."""
    with start(SPEECH="off") as silent:
        listed = silent.client.get("/v1/models").json()["data"]
        assert {model["task"] for model in listed} == {RECORDINGS}
        assert silent.client.get("/v1/models/tts-1").status_code == 404
        assert speak(silent).status_code == 501
