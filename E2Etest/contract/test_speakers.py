"""Speakers in files of jobs, and a lost process that tells them apart. Answers in every format are a conversation."""

import json

import pytest

from E2Etest.contract import sounds
from E2Etest.contract.scripted_speakers import ScriptedSpeakers
from E2Etest.drive import recordings

VOICE = sounds.url({"sound_url": ["speech"]})


@pytest.fixture(scope="module")
def speakers():
    return ScriptedSpeakers([(0, 0.0, 10.0)])


@pytest.fixture(scope="module")
def server(start, speakers):
    with start(speakers=speakers) as process:
        yield process


def test_the_recording_of_a_named_voice_is_gone_with_the_job(server):
    named = {"known_speaker_names[]": "canary", "known_speaker_references[]": VOICE}
    state, _ = server.job(recordings.sample()[0], response_format="diarized_json", **named)
    assert state["status"] == "succeeded"
    left = {path.name for path in (server.state / "jobs").glob(f"{state['id']}.*")}
    assert left == {f"{state['id']}.result", f"{state['id']}.transcript"}


def test_a_lost_process_is_an_error_that_says_so(server, speakers):
    """Before the first event a status, in a stream an event behind the text."""
    talk = recordings.sample()[0]
    speakers.is_lost = True
    answer = server.transcribe(talk, response_format="diarized_json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "speakers_unavailable")
    lines = server.transcribe(talk, response_format="diarized_json", stream="true").text.split("\n\n")
    assert "transcript.text.delta" in lines[0]
    assert json.loads(lines[-2][6:])["error"]["code"] == "speakers_unavailable"
    assert server.transcribe(talk).status_code == 200
