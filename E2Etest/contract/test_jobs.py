"""Jobs over HTTP, with the demonstration model: taken, watched, fetched, removed, and kept over a restart."""

import json

import numpy as np
import pytest

from asr_server_fake.script import FakeScript
from E2Etest.drive import recordings

pytestmark = pytest.mark.demo_server

PAUSE = np.zeros(40_000, np.int16)


def long_recording(times):
    """The sample so many times with pauses that part it into spans."""
    return recordings.wav(np.concatenate([part for _ in range(times) for part in (recordings.samples(), PAUSE)]))


def submit(server, audio, **fields):
    answer = server.client.post("/v1/jobs", files={"file": ("a.wav", audio)}, data={"model": "whisper-1", **fields})
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return answer.json()


def events(server, identity):
    """Every state that the job's event stream tells."""
    with server.client.stream("GET", f"/v1/jobs/{identity}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]


@pytest.fixture(scope="module")
def server(reach):
    """The defaults, with steps that take some time."""
    with reach(script=FakeScript(step_s=0.002)) as process:
        yield process


def test_a_job_gives_what_the_request_gives(server, sample):
    """The result is the body of the transcription route, with its type; progress grows up to the whole."""
    audio = long_recording(4)
    job = submit(server, audio, response_format="verbose_json", language="en")
    assert (job["object"], job["status"]) == ("job", "queued")
    seen = events(server, job["id"])
    done = [event["progress"]["done_s"] for event in seen]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    assert seen[-1]["status"] == "succeeded"
    assert seen[-1]["progress"]["fraction"] == 1
    assert server.client.get(f"/v1/jobs/{job['id']}").json() == seen[-1]
    result = server.client.get(f"/v1/jobs/{job['id']}/result")
    direct = server.transcribe(audio, response_format="verbose_json", language="en")
    assert result.headers["content-type"] == direct.headers["content-type"]
    assert _without_scores(result.json()) == _without_scores(direct.json())
    assert result.json()["text"].split() == 4 * sample[1].split()


FORMATS = ("json", "text", "srt", "vtt", "verbose_json", "markdown")


def test_a_result_is_had_in_every_format_without_being_heard_again(server, sample):
    """The result is what a request for that format gives, with estimated times of words unless the job had others."""
    audio = long_recording(2)
    job = submit(server, audio, response_format="text", language="en")
    assert events(server, job["id"])[-1]["status"] == "succeeded"
    for wanted in FORMATS:
        later = server.client.get(f"/v1/jobs/{job['id']}/result", params={"response_format": wanted})
        direct = server.transcribe(audio, response_format=wanted, language="en", mode="fast")
        assert (later.status_code, later.headers["content-type"]) == (200, direct.headers["content-type"])
        if wanted == "verbose_json":
            assert _without_scores(later.json()) == _without_scores(direct.json())
        else:
            assert later.content == direct.content
    words = {"response_format": "json", "return_timestamps": "true"}
    listed = server.client.get(f"/v1/jobs/{job['id']}/result", params=words).json()["words"]
    assert (len(listed), {word["source"] for word in listed}) == (2 * len(sample[1].split()), {"estimated"})


@pytest.mark.parametrize(
    ("fields", "wanted", "param"),
    [
        ({}, "diarized_json", "response_format"),  # speakers were not told apart
        ({}, "opus", "response_format"),
    ],
)
def test_a_result_is_not_had_in_what_the_job_does_not_know(server, fields, wanted, param):
    job = submit(server, recordings.wav(recordings.samples()), **fields)
    assert events(server, job["id"])[-1]["status"] == "succeeded"
    answer = server.client.get(f"/v1/jobs/{job['id']}/result", params={"response_format": wanted})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def _without_scores(body):
    """A verbose transcript less its log-probabilities, whose last bits depend on the batch."""
    return body | {"segments": [segment | {"avg_logprob": 0} for segment in body["segments"]]}


def test_what_is_wrong_is_said_at_once_or_in_the_job(server):
    """Wrong fields never become a job; a file that is no audio is a job that failed and says why."""
    refused = server.client.post("/v1/jobs", files={"file": b"x"}, data={"model": "demo", "temperature": "7"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    job = submit(server, b"this is no recording")
    last = events(server, job["id"])[-1]
    assert last["status"] == "failed"
    assert last["error"]["code"] == "invalid_audio"
    result = server.client.get(f"/v1/jobs/{job['id']}/result")
    assert (result.status_code, result.json()["error"]["code"]) == (409, "job_not_finished")


def test_a_request_with_a_key_that_is_sent_again_makes_no_second_job(server, sample):
    """A recording, or a text to speak."""
    audio, key = recordings.wav(recordings.samples()), {"Idempotency-Key": "5c0f6d1a-recording"}

    def send(data, **headers):
        return server.client.post(
            "/v1/jobs", files={"file": ("a.wav", data)}, data={"model": "whisper-1"}, headers=headers
        )

    answers = [send(audio, **key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["id"] == answers[1].json()["id"] != send(audio).json()["id"]
    reused = send(long_recording(1), **key)
    assert (reused.status_code, reused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert send(audio, **{"Idempotency-Key": "k" * 256}).status_code == 400
    text = {"model": "tts-1", "input": "One two three.", "voice": "alloy"}
    spoken = [
        server.client.post("/v1/audio/speech/jobs", json=text, headers={"Idempotency-Key": "t"}) for _ in range(2)
    ]
    assert spoken[0].json()["id"] == spoken[1].json()["id"]


def test_a_job_has_a_priority(server, sample):
    """A job of a recording and one of a text take a priority; another word is refused."""
    assert submit(server, sample[0], priority="high")["priority"] == "high"
    text = {"model": "tts-1", "input": "One.", "voice": "alloy", "priority": "low"}
    assert server.client.post("/v1/audio/speech/jobs", json=text).json()["priority"] == "low"
    wrong = server.client.post("/v1/jobs", files={"file": ("a.wav", sample[0])}, data={"priority": "urgent"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "priority")


def test_a_job_can_be_stopped_and_removed(server):
    """What runs is freed, and the id is forgotten."""
    job = submit(server, long_recording(60))
    assert server.client.get(f"/v1/jobs/{job['id']}/result").status_code == 409
    server.wait_for(lambda h: h["queue"]["audio_held_s"] > 0)
    gone = server.client.delete(f"/v1/jobs/{job['id']}").json()
    assert gone == {"id": job["id"], "object": "job", "deleted": True}
    server.wait_for(lambda h: h["queue"]["audio_held_s"] == h["queue"]["running"] == 0)
    for method, path in (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")):
        answer = server.client.request(method, f"/v1/jobs/{job['id']}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found")


def test_who_watches_a_job_does_not_hold_up_the_end(start):
    """SIGTERM sends the watcher away with a reason; the server does not wait for the job to be over."""
    with start() as server:
        job = submit(server, recordings.wav(np.tile(recordings.samples()[::2], 800), rate=8000))
        with server.client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            lines = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            next(event for event in lines if event.get("status") == "running")
            server.begin_to_stop()
            last = list(lines)[-1]
        assert last["error"]["code"] == "shutting_down"
        server.stop()
        assert "Traceback" not in server.log()


def test_two_servers_do_not_share_a_directory(start, server, sample):
    """The second runs and transcribes; for jobs it says what is the matter."""
    with start(STATE_DIR=str(server.state)) as other:
        answer = other.client.post("/v1/jobs", files={"file": sample[0]}, data={"model": "demo"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "jobs_unavailable")
        assert "retry-after" in answer.headers


def test_without_its_database_a_server_has_no_jobs_and_everything_else(start, sample):
    """It starts, says so for jobs, and does not fall back to `STATE_DIR`. The address is not shown."""
    with start(JOBS_DATABASE_URL="postgresql://asr:a-secret@127.0.0.1:1/asr") as server:
        for method, path in (("POST", ""), ("GET", "/job_x"), ("GET", "/job_x/result"), ("DELETE", "/job_x")):
            files = {"file": sample[0]} if method == "POST" else None
            answer = server.client.request(method, f"/v1/jobs{path}", files=files)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "jobs_unavailable")
            assert "retry-after" in answer.headers
            assert "a-secret" not in answer.text
        assert server.transcribe(sample[0], response_format="text").text.split() == sample[1].split()
        assert server.client.get("/readyz").status_code == 200
        assert not (server.state / "jobs").exists()
        assert "a-secret" not in server.log()
