"""Real servers with one database: a killed one, a stopped one, a database that is gone for a while, and many jobs."""

import signal
import time

import pytest

from E2Etest.contract.test_jobs import events, long_recording, submit
from E2Etest.drive.process import ServerProcess, running, until
from E2Etest.postgres import postgres

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def database():
    with postgres() as started:
        yield started


@pytest.fixture
def settings(database, fake_sample):
    """Of servers that share their jobs. The URL has a password, which no log may show."""
    database.query("DROP SCHEMA public CASCADE")
    database.query("CREATE SCHEMA public")
    return {"JOBS_DATABASE_URL": database.url.replace("asr@", "asr:a-secret@"), **fake_sample}


def ended(server, identity):
    """The body of a job that is over, asked again and again, also while the server says that jobs are off."""
    job = {}

    def is_over():
        answer = server.client.get(f"/v1/jobs/{identity}")
        assert answer.status_code in (200, 503), answer.text
        job.update(answer.json())
        return answer.status_code == 200 and job["ended_at"]

    until(is_over, 120.0, lambda: str(job))
    return job


def words(server, identity):
    return server.client.get(f"/v1/jobs/{identity}/result").text.split()


def runs(server, identity):
    """How often the server's log has the end of this job."""
    return server.log().count(f" job id={identity} outcome=")


@pytest.mark.guarantee("jobs-takeover")
def test_what_a_killed_server_ran_another_finishes(tmp_path, sample, settings, measured):
    """After kill -9 in the middle: the other server has finished results and unfinished jobs, each with one result."""
    first, second = (
        ServerProcess(tmp_path / name, **settings, STATE_DIR=str(tmp_path / f"{name}-state")) for name in "ab"
    )
    try:
        for server in (first, second):
            server.wait_until_live()
        short = submit(first, sample[0], response_format="text")
        assert ended(second, short["id"])["status"] == "succeeded"
        second.process.send_signal(signal.SIGSTOP)  # so that the first takes it
        long = submit(first, long_recording(20), response_format="text")
        with first.client.stream("GET", f"/v1/jobs/{long['id']}/events") as answer:
            next(line for line in answer.iter_lines() if '"running"' in line)
        second.process.send_signal(signal.SIGCONT)
        first.process.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        assert ended(second, long["id"])["status"] == "succeeded"
        measured("done_s", time.monotonic() - killed_s)
        assert words(second, long["id"]) == 20 * sample[1].split()
        assert words(second, short["id"]) == sample[1].split()
        assert runs(second, long["id"]) == 1
        assert second.client.delete(f"/v1/jobs/{long['id']}").status_code == 200
        assert "a-secret" not in first.log() + second.log()
    finally:
        first.stop()
        second.process.send_signal(signal.SIGCONT)
        second.stop()


def test_a_server_starts_before_its_database(tmp_path, sample, settings, database):
    """Jobs are off with a reason until it answers, and everything else works."""
    database.stop()
    try:
        with running(tmp_path / "a", **settings) as server:
            answer = server.client.post("/v1/jobs", files={"file": sample[0]}, data={"model": "demo"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "jobs_unavailable")
            assert server.transcribe(sample[0], response_format="text").text.split() == sample[1].split()
            database.start()
            job = submit(server, sample[0], response_format="text")
            assert events(server, job["id"])[-1]["status"] == "succeeded"
            assert "a-secret" not in server.log()
    finally:
        if database.process.poll() is not None:
            database.start()
