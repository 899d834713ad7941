"""Jobs over HTTP outlive their server."""

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
