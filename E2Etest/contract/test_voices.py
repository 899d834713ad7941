"""Voices by name over HTTP: stored of recordings, listed, deleted, kept over a restart. People are tones."""

import json
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from asr_server.features.speakers import voices as voices_module
from asr_server.features.speakers.diarization.conftest import ToneSpeakers, tone
from asr_server.features.speakers.diarization.turns import Diarization, Turn
from E2Etest.drive import recordings
from E2Etest.drive.process import FIRST, SECOND

ANN, BOB = recordings.wav(tone(440, 3)), recordings.wav(tone(1_000, 3))
TONES = ToneSpeakers()
FIELDS = {"name": "canary Ann", "consent": "canary note of 1 June"}


@pytest.fixture(scope="module")
def keyed(start):
    """Two keys; the directory is kept when it is started again."""
    with start(speakers=TONES, API_KEYS=f"{FIRST},{SECOND}", MAX_UPLOAD_MB="4") as server:
        yield server


@pytest.fixture(autouse=True)
def _no_voices(keyed):
    """Each test begins without voices."""
    for key in (FIRST, SECOND):
        for voice in as_key(keyed, key, "GET").json()["data"]:
            assert as_key(keyed, key, "DELETE", f"/{voice['id']}").status_code == 200


def as_key(server, key, method, path="", **options):
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.request(method, f"{server.base}/v1/speakers{path}", headers=headers, timeout=60, **options)


def enrol(server, *files, key=FIRST, field="files[]", **fields):
    parts = [(field, ("canary.wav", file)) for file in files or (ANN,)]
    return as_key(server, key, "POST", data={**FIELDS, **fields}, files=parts)


def test_only_numbers_of_a_voice_are_kept(keyed):
    """256 of them: no sound and no name of a file. The files are the server's alone."""
    voice = enrol(keyed).json()
    (path,) = [path for path in (keyed.state / "speakers").rglob("*") if path.is_file() and path.name != ".lock"]
    stored = json.loads(path.read_bytes())
    assert set(stored) == {"version", "id", "name", "consent", "created_at", "model", "voice_print"}
    assert (stored["id"], len(stored["voice_print"])) == (voice["id"], 4 * -(-256 * 4 // 3))
    assert path.stat().st_mode & 0o777 == 0o600
    assert as_key(keyed, FIRST, "DELETE", f"/{voice['id']}").status_code == 200
    assert not path.exists()


def test_voices_are_there_after_a_restart(start):
    """Until they are deleted."""
    with start(speakers=ToneSpeakers()) as server:
        voice = server.client.post("/v1/speakers", data=FIELDS, files={"file": ("a.wav", ANN)}).json()
        state = str(server.state)
    with start(STATE_DIR=state) as server:
        assert server.client.get("/v1/speakers").json()["data"] == [voice]
        assert server.client.delete(f"/v1/speakers/{voice['id']}").status_code == 200
    with start(STATE_DIR=state) as server:
        assert server.client.get("/v1/speakers").json()["data"] == []


class _AnnSpeaks(ToneSpeakers):
    """In every recording that is transcribed."""

    @asynccontextmanager
    async def recording(self):
        yield self

    async def push(self, samples):
        """Whatever is heard."""

    async def finish(self, count):
        said = await self.diarize(tone(440, 2) / np.float32(32_768))
        return Diarization((Turn(0, 0, 60_000),), said.voice_prints)


@pytest.mark.slow("finds the speakers of several recordings")
def test_a_person_is_named_in_the_recordings_of_the_key_that_stored_the_voice(start, sample):
    """In requests and jobs; not in those of another key, and not after the voice is deleted. A letter stands then."""
    fields = {"model": "demo", "response_format": "diarized_json"}
    with start(speakers=_AnnSpeaks(), API_KEYS=f"{FIRST},{SECOND}") as server:

        def names(key):
            headers = {"Authorization": f"Bearer {key}"}
            form = {"data": fields, "files": {"file": sample[0]}, "headers": headers}
            answer = server.client.post("/v1/audio/transcriptions", **form).json()
            job = server.client.post("/v1/jobs", **form).json()["id"]
            server.client.get(f"/v1/jobs/{job}/events", headers=headers)
            of_job = server.client.get(f"/v1/jobs/{job}/result", headers=headers).json()
            return {segment["speaker"] for body in (answer, of_job) for segment in body["segments"]}

        voice = enrol(server).json()
        assert (names(FIRST), names(SECOND)) == ({FIELDS["name"]}, {"A"})
        assert as_key(server, FIRST, "DELETE", f"/{voice['id']}").status_code == 200
        assert names(FIRST) == {"A"}


def test_there_is_a_bound_for_each_key(keyed, monkeypatch):
    """The answer is 429 and says what to do. Nothing is computed, and another key still has room."""
    monkeypatch.setattr(voices_module, "MAX_VOICES_EACH", 1)
    assert enrol(keyed).status_code == 201
    calls = TONES.calls
    answer = enrol(keyed, name="Bob")
    assert TONES.calls == calls
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "delete some" in answer.json()["error"]["message"]
    assert enrol(keyed, key=SECOND).status_code == 201


def test_a_server_without_speakers_stores_no_voice_and_deletes_those_it_has(start):
    """What was stored while speakers were told apart is not locked in."""
    with start(speakers=ToneSpeakers()) as server:
        assert server.client.post("/v1/speakers", data=FIELDS, files={"file": ("a.wav", ANN)}).is_success
        state = str(server.state)
    with start(STATE_DIR=state, SPEAKERS="off") as server:
        answer = server.client.post("/v1/speakers", data=FIELDS, files={"file": ("a.wav", ANN)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_value")
        assert "SPEAKERS=off" in answer.json()["error"]["message"]
        (voice,) = server.client.get("/v1/speakers").json()["data"]
        assert server.client.delete(f"/v1/speakers/{voice['id']}").status_code == 200


def test_where_nothing_can_be_stored_it_is_said(start, tmp_path):
    """503, for the list too; the server goes on."""
    (tmp_path / "file").write_text("no directory")
    with start(speakers=ToneSpeakers(), STATE_DIR=str(tmp_path / "file")) as server:
        answer = server.client.post("/v1/speakers", data=FIELDS, files={"file": ("a.wav", ANN)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "speakers_unavailable")
        assert "retry-after" in answer.headers
        assert server.transcribe(recordings.sample()[0]).status_code == 200
