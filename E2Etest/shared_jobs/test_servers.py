"""Real servers with one database: a killed one, a stopped one, a database that is gone for a while, and many jobs."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
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


@pytest.fixture
def two(tmp_path, settings):
    """Two servers with the database."""
    with (
        running(tmp_path / "a", **settings, STATE_DIR=str(tmp_path / "a-state")) as first,
        running(tmp_path / "b", **settings, STATE_DIR=str(tmp_path / "b-state")) as second,
    ):
        yield first, second


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


def test_a_stopped_server_that_goes_on_writes_nothing(tmp_path, sample, settings, database):
    """It stood still for longer than its lease. The other server's result stays, and it serves that too."""
    with running(tmp_path / "a", **settings, STATE_DIR=str(tmp_path / "a-state")) as first:
        job = submit(first, long_recording(60), response_format="text")
        with first.client.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
            next(line for line in answer.iter_lines() if '"running"' in line)
        first.process.send_signal(signal.SIGSTOP)
        try:
            with running(tmp_path / "b", **settings, STATE_DIR=str(tmp_path / "b-state")) as second:
                assert ended(second, job["id"])["status"] == "succeeded"
                assert runs(second, job["id"]) == 1
        finally:
            first.process.send_signal(signal.SIGCONT)
        before = database.query("SELECT claim, lost, record FROM asr_jobs")
        until(lambda: "taken over by another server" in first.log())
        first.wait_for(lambda health: health["jobs"] == 0)
        assert words(first, job["id"]) == 60 * sample[1].split()
        assert runs(first, job["id"]) == 0
        assert database.query("SELECT claim, lost, record FROM asr_jobs") == before


def test_many_jobs_are_each_done_once(sample, two):
    """50 over two servers: both take part, and no job is done twice or not at all."""
    first, second = two
    with ThreadPoolExecutor(4) as pool:
        servers = [first, second] * 25
        jobs = list(pool.map(lambda server: submit(server, sample[0], response_format="text")["id"], servers))
    for job in jobs:
        assert ended(second, job)["status"] == "succeeded"
    for job in jobs:
        assert words(first, job) == sample[1].split()
    done = [(runs(first, job), runs(second, job)) for job in jobs]
    assert {sum(each) for each in done} == {1}
    assert all(sum(one) > 0 for one in zip(*done, strict=True))


def test_a_database_that_is_gone_for_a_while(sample, two, database):
    """Crashed and restarted under load: jobs are refused with a reason and nothing else is; what was accepted ends."""
    first, second = two
    accepted, refused, stop = [], [], threading.Event()

    def submit_all_the_time(server):
        while not stop.is_set():
            fields = {"model": "whisper-1", "response_format": "text"}
            answer = httpx.post(f"{server.base}/v1/jobs", files={"file": sample[0]}, data=fields, timeout=60)
            (accepted if answer.status_code == 202 else refused).append(answer)

    with ThreadPoolExecutor(2) as pool:
        load = [pool.submit(submit_all_the_time, server) for server in (first, second)]
        try:
            until(lambda: len(accepted) >= 10)
            database.stop()
            until(lambda: len(refused) >= 10)
            answer = first.client.get(f"/v1/jobs/{accepted[0].json()['id']}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "jobs_unavailable")
            assert "retry-after" in answer.headers
            assert first.transcribe(sample[0], response_format="text").text.split() == sample[1].split()
            assert first.client.get("/readyz").status_code == 200
            database.start()
            count = len(accepted)
            until(lambda: len(accepted) >= count + 10)
        finally:
            stop.set()
        for one in load:
            one.result(timeout=60)
    assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(503, "jobs_unavailable")}
    for answer in accepted:
        assert ended(second, answer.json()["id"])["status"] == "succeeded"
    done = [runs(first, answer.json()["id"]) + runs(second, answer.json()["id"]) for answer in accepted]
    assert set(done) <= {0, 1}  # 0: the connection broke behind the end of the transaction


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
