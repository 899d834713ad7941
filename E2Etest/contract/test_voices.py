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
FIELDS = {"name": "Canary Ann", "consent": "canary note of 1 June"}


@pytest.fixture(scope="module")
def keyed(start):
    """Two keys; the directory is kept when it is started again."""
    with start(speakers=ToneSpeakers(), API_KEYS=f"{FIRST},{SECOND}", MAX_UPLOAD_MB="4") as server:
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


def test_a_voice_is_stored_listed_and_deleted(keyed):
    """Every answer shows the name, the note and the day, and none shows the print."""
    answer = enrol(keyed, ANN, recordings.wav(tone(440, 2)))
    voice = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/speakers/{voice['id']}")
    assert set(voice) == {"id", "object", "name", "consent", "created_at", "model"}
    assert (voice["object"], voice["name"], voice["consent"]) == ("speaker", *FIELDS.values())
    assert keyed.client.get("/v1/speakers").json() == {"object": "list", "data": [voice]}
    assert keyed.client.get(f"/v1/speakers/{voice['id']}").json() == voice
    assert keyed.client.delete(f"/v1/speakers/{voice['id']}").json() == {
        "id": voice["id"],
        "object": "speaker",
        "deleted": True,
    }
    for method in ("GET", "DELETE"):
        gone = keyed.client.request(method, f"/v1/speakers/{voice['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "speaker_not_found")
    assert [path for path in (keyed.state / "speakers").rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_only_numbers_of_a_voice_are_kept(keyed):
    """256 of them: no sound and no name of a file. The files are the server's alone."""
    voice = enrol(keyed).json()
    (path,) = [path for path in (keyed.state / "speakers").rglob("*") if path.is_file() and path.name != ".lock"]
    stored = json.loads(path.read_bytes())
    assert set(stored) == {"version", "id", "name", "consent", "created_at", "model", "voice_print"}
    assert (stored["id"], len(stored["voice_print"])) == (voice["id"], 4 * -(-256 * 4 // 3))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_voice_is_there_for_its_key_alone(keyed):
    """Another key gets 404 for all of it, has a list of its own, and is not told who else has that name."""
    mine = enrol(keyed).json()["id"]
    for method in ("GET", "DELETE"):
        answer = as_key(keyed, SECOND, method, f"/{mine}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "speaker_not_found")
    assert as_key(keyed, SECOND, "GET").json()["data"] == []
    assert enrol(keyed, BOB, key=SECOND).json()["id"] != mine
    assert [voice["id"] for voice in keyed.client.get("/v1/speakers").json()["data"]] == [mine]


def test_a_name_is_stored_once(keyed):
    """The request that is sent again replaces what it has stored; spelling by other code points is no other name."""
    first = enrol(keyed, name="Zoë").json()
    second = enrol(keyed, BOB, name=" Zoe\u0308 ", consent="another note").json()
    assert second["id"] == first["id"]
    assert [voice["consent"] for voice in keyed.client.get("/v1/speakers").json()["data"]] == ["another note"]


@pytest.mark.parametrize("name", ["A\u200bnn", "\ufeffAnn", "\u202eAnn\u202c", "Ann\u200d", "A\u00adnn\u2066\u2069"])
def test_what_nobody_sees_is_no_part_of_a_name(keyed, name):
    """Two names that look alike would be two voices, and a mark of direction would turn the text behind it around."""
    first = enrol(keyed, name="Ann").json()
    second = enrol(keyed, name=name).json()
    assert (second["id"], second["name"]) == (first["id"], "Ann")


def test_joiners_are_a_part_of_a_name(keyed):
    """Persian names have them."""
    assert enrol(keyed, name="\u0645\u0647\u200c\u0631\u062e").json()["name"] == "\u0645\u0647\u200c\u0631\u062e"


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


TWO_PEOPLE = recordings.wav(np.concatenate([tone(440, 3), tone(1_000, 3)]))


@pytest.mark.parametrize(
    ("files", "fields", "code", "param"),
    [
        ([ANN], {"name": " "}, "missing_required_parameter", "name"),
        ([ANN], {"consent": ""}, "missing_required_parameter", "consent"),
        ([ANN], {"name": "x" * 65}, "invalid_value", "name"),
        ([ANN], {"name": "a\x07b"}, "invalid_value", "name"),
        ([ANN], {"name": "\u200b\u200d\u202e"}, "invalid_value", "name"),
        ([ANN], {"consent": "x" * 501}, "invalid_value", "consent"),
        ([ANN] * 6, {}, "invalid_value", "files"),
        ([ANN] * 11, {}, "malformed_body", None),
        ([b""], {}, "empty_file", "files"),
        ([b"this is no recording" * 50], {}, "invalid_audio", "files"),
        ([recordings.silent_video()], {}, "no_audio_track", "files"),
        ([recordings.wav(np.zeros(800, np.int16))], {}, "audio_too_short", "files"),
        ([recordings.wav(tone(440, 1.5))], {}, "invalid_reference", "files"),
        ([recordings.wav(tone(440, 61))], {}, "invalid_reference", "files"),
        ([recordings.wav(np.zeros(64_000, np.int16))], {}, "invalid_reference", "files"),
        ([TWO_PEOPLE], {}, "invalid_reference", "files"),
        ([ANN, BOB], {}, "invalid_reference", "files"),
        ([recordings.wav(np.tile(tone(440, 3), 50))], {}, "file_too_large", "file"),
    ],
)
def test_what_cannot_be_stored_is_refused(keyed, files, fields, code, param):
    """With a code and the field, and nothing of it is kept."""
    answer = enrol(keyed, *files, **fields)
    assert answer.status_code == (413 if code == "file_too_large" else 400), answer.text
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)
    assert keyed.client.get("/v1/speakers").json()["data"] == []


def test_a_recording_may_be_called_file_or_files(keyed):
    """As curl and the libraries write it; a text is no recording."""
    for field in ("file", "files", "files[]", "files[0]"):
        assert enrol(keyed, field=field).status_code == 201
    answer = as_key(keyed, FIRST, "POST", data={**FIELDS, "file": "a text"}, files={"other": b"x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "missing_required_parameter")


def test_there_is_a_bound_for_each_key(keyed, monkeypatch):
    """429 with what to do; another key has room."""
    monkeypatch.setattr(voices_module, "MAX_VOICES_EACH", 1)
    assert enrol(keyed).status_code == 201
    answer = enrol(keyed, name="Bob")
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


def test_nothing_of_a_voice_is_in_the_log_or_in_the_metrics(keyed):
    """No name, no note, no name of a file: of voices that are stored, refused, found and damaged."""
    voice = enrol(keyed, name="Canary Bob").json()
    enrol(keyed, b"canary" * 99, name="Canary Cid")
    enrol(keyed, name="Canary" * 20)
    enrol(keyed, name="canary\x07")
    keyed.client.get(f"/v1/speakers/{voice['id']}")
    keyed.client.get("/v1/speakers/canary")
    for path in (keyed.state / "speakers").rglob("*.json"):
        path.write_text(path.read_text().replace('"version":1', '"version":"x"'))
    assert keyed.client.get("/v1/speakers").json()["data"] == []
    shown = keyed.log() + keyed.client.get("/metrics").text
    assert "voice is unreadable and was moved" in shown
    assert "canary" not in shown.lower()
    assert voice["consent"] not in shown
