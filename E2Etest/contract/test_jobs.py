"""Jobs over HTTP: their progress and their end."""

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
    with server.client.stream("GET", f"/v1/jobs/{identity}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]


def test_the_progress_of_a_job_grows_up_to_the_whole(reach, sample):
    with reach(script=FakeScript(step_s=0.002)) as server:
        job = submit(server, long_recording(4), response_format="text")
        seen = events(server, job["id"])
        assert server.client.get(f"/v1/jobs/{job['id']}").json() == seen[-1]
        assert server.client.get(f"/v1/jobs/{job['id']}/result").text.split() == 4 * sample[1].split()
    done = [event["progress"]["done_s"] for event in seen]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    assert (seen[-1]["status"], seen[-1]["progress"]["fraction"]) == ("succeeded", 1)
    assert seen[-1]["created_at"] <= seen[-1]["started_at"] <= seen[-1]["ended_at"]
