"""Requests that are sent when a job has ended: its state to `callback_url`."""

import pytest

from E2Etest.contract.test_jobs import long_recording, submit
from E2Etest.drive import recordings
from E2Etest.drive.process import until
from E2Etest.receiver import receiving


@pytest.fixture
def receiver():
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def sending(start):
    with receiving() as settings, start(**settings.settings()) as server:
        yield server


def settled(server, identity):
    """The job's body, when no request waits any more."""

    def found():
        job = server.client.get(f"/v1/jobs/{identity}").json()
        return job["ended_at"] and "waiting" not in {one["state"] for one in job["follow_ups"]} and job

    return until(found)


def test_the_state_is_sent(sending, receiver):
    """The message is signed, and its data is what the job's address answers meanwhile."""
    job = submit(sending, recordings.sample()[0], response_format="text", callback_url=f"{receiver.url}/hook")
    done = settled(sending, job["id"])
    sent = [(one["field"], one["state"], one["attempts"]) for one in done["follow_ups"]]
    assert (sent, receiver.paths) == ([("callback_url", "done", 1)], ["/hook"])
    (message,) = receiver.messages
    assert (message["type"], message["webhook-id"]) == ("job.succeeded", f"msg_{job['id']}")
    assert message["data"] | {"follow_ups": done["follow_ups"]} == done
    assert [one["state"] for one in message["data"]["follow_ups"]] == ["waiting"]


@pytest.mark.slow("waits for jobs to end")
def test_failed_and_cancelled_jobs_tell_so(sending, receiver):
    """Deleting a job sends no webhook."""
    hook = {"callback_url": f"{receiver.url}/hook"}
    failed = submit(sending, b"this is no recording", **hook)
    assert [one["state"] for one in settled(sending, failed["id"])["follow_ups"]] == ["done"]
    cancelled, removed = (submit(sending, long_recording(60), **hook) for _ in range(2))
    assert sending.client.delete(f"/v1/jobs/{removed['id']}").status_code == 200
    answer = sending.client.post(f"/v1/jobs/{cancelled['id']}/cancel").json()
    assert answer["status"] == settled(sending, cancelled["id"])["status"] == "cancelled"
    assert sending.client.get(f"/v1/jobs/{cancelled['id']}/result").status_code == 409
    sending.wait_for(lambda health: health["jobs"] == health["queue"]["audio_held_s"] == 0)  # its run was stopped
    assert sending.client.post(f"/v1/jobs/{removed['id']}/cancel").status_code == 404
    assert [(message["type"], message["data"]["id"]) for message in receiver.messages] == [
        ("job.failed", failed["id"]),
        ("job.cancelled", cancelled["id"]),
    ]
    assert receiver.messages[0]["data"]["error"]["code"] == "invalid_audio"


def test_a_spoken_text_tells_too(sending, receiver):
    """The fields are part of its JSON."""
    text = {"model": "tts-1", "input": "One two.", "voice": "alloy", "callback_url": f"{receiver.url}/hook"}
    job = sending.client.post("/v1/audio/speech/jobs", json=text).json()
    assert [one["state"] for one in settled(sending, job["id"])["follow_ups"]] == ["done"]
