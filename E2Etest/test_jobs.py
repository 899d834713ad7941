"""Jobs over HTTP outlive their server."""

import json
import signal

import pytest

from E2Etest.contract.test_jobs import events, long_recording, submit
from E2Etest.drive.process import running

pytestmark = pytest.mark.integration


@pytest.mark.slow("starts the server twice")
def test_a_killed_server_loses_no_job(tmp_path, sample, fake_sample):
    """After kill -9 in the middle: the finished result is there, and the unfinished job is done by the next server."""
    state = str(tmp_path / "state")
    with running(tmp_path / "first", STATE_DIR=state, **fake_sample) as first:
        short = submit(first, sample[0], response_format="text")
        assert events(first, short["id"])[-1]["status"] == "succeeded"
        long = submit(first, long_recording(20), response_format="text")
        with first.client.stream("GET", f"/v1/jobs/{long['id']}/events") as answer:
            next(line for line in answer.iter_lines() if '"running"' in line)
            first.process.send_signal(signal.SIGKILL)
    with running(tmp_path / "second", STATE_DIR=state, **fake_sample) as second:
        assert second.client.get(f"/v1/jobs/{short['id']}/result").text == sample[1] + "\n"
        assert events(second, long["id"])[-1]["status"] == "succeeded"
        words = second.client.get(f"/v1/jobs/{long['id']}/result").text.split()
        assert words == 20 * sample[1].split()


@pytest.mark.nightly
def test_a_killed_server_speaks_its_text_anew(tmp_path, fake_sample):
    """After kill -9 in the middle of a long text, the next server speaks all of it: no byte shows the break."""
    sentences = (f"This is sentence number {number}, which is said once and never again." for number in range(200))
    wanted = {"input": " ".join(sentences), "response_format": "wav"}
    settings = {"STATE_DIR": str(tmp_path / "state"), "SPEECH": "espeak", **fake_sample}
    with running(tmp_path / "first", **settings) as first:
        job = first.client.post("/v1/audio/speech/jobs", json=wanted).json()["id"]
        with first.client.stream("GET", f"/v1/jobs/{job}/events") as answer:
            states = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            next(state for state in states if state["progress"]["done_characters"] > 6_000)
            first.process.send_signal(signal.SIGKILL)
    with running(tmp_path / "second", **settings) as second:
        uninterrupted = second.client.post("/v1/audio/speech/jobs", json=wanted).json()["id"]
        for one in (job, uninterrupted):
            events(second, one)
        results = [second.client.get(f"/v1/jobs/{one}/result").content for one in (job, uninterrupted)]
    assert len(results[0]) > 10_000_000
    assert results[0] == results[1]
