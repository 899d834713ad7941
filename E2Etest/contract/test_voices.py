"""Voices by name over HTTP: stored of recordings, listed, deleted, kept over a restart. People are tones."""

import json

import pytest

from asr_server.features.speakers import voices as voices_module
from asr_server.features.speakers.diarization.conftest import ToneSpeakers, tone
from E2Etest.contract.scripted_speakers import ScriptedSpeakers
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND, refusal

ANN = recordings.wav(tone(440, 3))
FIELDS = {"name": "canary Ann", "consent": "canary note of 1 June"}


def enrol(server, key=FIRST, **fields):
    form = {"data": FIELDS | fields, "files": {"file": ("canary.wav", ANN)}}
    return server.client.post("/v1/speakers", headers={"Authorization": f"Bearer {key}"}, **form)


def test_only_numbers_of_a_voice_are_kept(start):
    """256 of them: no sound and no name of a file. The files are the server's alone."""
    with start(speakers=ToneSpeakers()) as server:
        voice = enrol(server).json()
        (path,) = [path for path in (server.state / "speakers").rglob("*") if path.is_file() and path.name != ".lock"]
        stored = json.loads(path.read_bytes())
        assert set(stored) == {"version", "id", "name", "consent", "created_at", "model", "voice_print"}
        assert (stored["id"], len(stored["voice_print"])) == (voice["id"], 4 * -(-256 * 4 // 3))
        assert path.stat().st_mode & 0o777 == 0o600
        assert server.client.delete(f"/v1/speakers/{voice['id']}").status_code == 200
        assert not path.exists()


@pytest.mark.slow("finds the speakers of several recordings")
def test_a_person_is_named_in_the_recordings_of_the_key_that_stored_the_voice(start, sample):
    """In requests and jobs; not in those of another key, and not after the voice is deleted. A letter stands then."""
    with start(speakers=ScriptedSpeakers([(0, 0.0, 60.0)]), API_KEYS=f"{FIRST},{SECOND}") as server:

        def names(key):
            headers = {"Authorization": f"Bearer {key}"}
            form = {"data": {"response_format": "diarized_json"}, "files": {"file": sample[0]}, "headers": headers}
            answer = server.client.post("/v1/audio/transcriptions", **form).json()
            job = server.client.post("/v1/jobs", **form).json()["id"]
            server.client.get(f"/v1/jobs/{job}/events", headers=headers)
            of_job = server.client.get(f"/v1/jobs/{job}/result", headers=headers).json()
            return {segment["speaker"] for body in (answer, of_job) for segment in body["segments"]}

        voice = enrol(server).json()
        assert (names(FIRST), names(SECOND)) == ({FIELDS["name"]}, {"A"})
        assert server.client.delete(f"/v1/speakers/{voice['id']}").status_code == 200
        assert names(FIRST) == {"A"}


def test_there_is_a_bound_for_each_key(start, monkeypatch):
    """The answer is 429 and says what to do. Nothing is computed, and another key still has room."""
    monkeypatch.setattr(voices_module, "MAX_VOICES_EACH", 1)
    tones = ToneSpeakers()
    with start(speakers=tones, API_KEYS=f"{FIRST},{SECOND}") as server:
        assert enrol(server).status_code == 201
        calls = tones.calls
        answer = enrol(server, name="Bob")
        assert tones.calls == calls
        assert refusal(answer)[:2] == (429, "rate_limit_exceeded")
        assert "delete some" in answer.text
        assert enrol(server, key=SECOND).status_code == 201


def test_voices_outlive_a_restart_and_can_be_deleted_without_speakers(start):
    """A server without speakers stores no voice."""
    with start(speakers=ToneSpeakers()) as server:
        voice, state = enrol(server).json(), str(server.state)
    with start(STATE_DIR=state, SPEAKERS="off") as server:
        answer = enrol(server)
        assert refusal(answer)[:2] == (400, "unsupported_value")
        assert "SPEAKERS=off" in answer.text
        assert server.client.get("/v1/speakers").json()["data"] == [voice]
        assert server.client.delete(f"/v1/speakers/{voice['id']}").status_code == 200
    with start(STATE_DIR=state) as server:
        assert server.client.get("/v1/speakers").json()["data"] == []


def test_where_nothing_can_be_stored_it_is_said(start, tmp_path):
    """503, for the list too; the server goes on."""
    (tmp_path / "file").write_text("no directory")
    with start(speakers=ToneSpeakers(), STATE_DIR=str(tmp_path / "file")) as server:
        answer = enrol(server)
        assert refusal(answer)[:2] == (503, "speakers_unavailable")
        assert "retry-after" in answer.headers
        assert server.transcribe(recordings.sample()[0]).status_code == 200
