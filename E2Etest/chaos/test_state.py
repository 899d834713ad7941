"""The directory of the jobs: what is in it beside them, keys that share it, and disks and clocks that fail."""

import json
import resource
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from E2Etest.contract.test_jobs import events, long_recording, submit
from E2Etest.drive import recordings
from E2Etest.drive.process import fake_model, running, until


def _named(name):
    return f"job_{name:_<24}"


def _contents(directory):
    """What is below it, however the files are called."""
    return sorted(path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.is_symlink())


def _furnish(state):
    """Put files of other programs there. Returns the contents of the files that must stay."""
    jobs, elsewhere = state / "jobs", state.parent / "elsewhere"
    files = {
        state / "lock": "a lock of another program",
        state / "photos" / "1.jpg": "photo",
        jobs / "notes.txt": "notes",
        jobs / "thesis" / "chapter-1" / "text": "thesis",
        jobs / "job_applications" / "letter": "letter",
        jobs / f"{_named('unknown')}.recording": "a recording of which the database does not know",
        jobs / f"{_named('half')}.result.part": "a part of a result of which the database does not know",
        elsewhere / "result": "linked",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (jobs / f"{_named('link')}.result").symlink_to(elsewhere / "result")
    return {text.encode() for text in files.values()}


@pytest.mark.guarantee("foreign-state")
def test_a_start_deletes_nothing_of_others(tmp_path, sample, fake_sample, measured, note):
    """The server starts twice next to files of other programs, and a job is accepted, done and removed. With a damaged
    database it starts twice more: the file stays, the server says why it takes no jobs, and it takes them once the file
    is gone."""
    state = tmp_path / "state"
    theirs = _furnish(state)
    settings = {"STATE_DIR": str(state), **fake_sample}
    for start in range(2):
        with running(tmp_path / f"log{start}", **settings) as server:
            job = submit(server, sample[0])
            events(server, job["id"])
            assert server.client.delete(f"/v1/jobs/{job['id']}").status_code == 200
    database = state / "jobs.sqlite3"
    database.write_text("no database" * 1_000)
    theirs.add(database.read_bytes())
    for start in range(2, 4):
        with running(tmp_path / f"log{start}", **settings) as server:
            answer = _post(server.client, sample[0])
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "jobs_unavailable")
            assert "not a database" in answer.json()["error"]["message"]
            if start == 3:
                database.rename(state / "damaged")
                assert _post(server.client, sample[0]).status_code == 202
    left = set(_contents(tmp_path))
    measured("deleted", len(theirs - left))
    note(f"{len(theirs)} files of others are left after four starts and two removed jobs")


@pytest.mark.guarantee("shares")
@pytest.mark.performance
def test_a_key_with_many_jobs_does_not_hold_up_another(tmp_path, measured, note):
    """Another key's first job runs before a second one of the flood ends; its requests take their usual time, and it is
    not refused, whereas the flood is."""
    settings = fake_model(tmp_path, text="words " * 40)
    clip = recordings.wav(np.ones(4 * 16_000, np.int16) * 100)
    with (
        running(tmp_path / "log", API_KEYS="flood,other", MAX_JOBS="40", IDLE_TIMEOUT="0", **settings) as server,
        httpx.Client(base_url=server.base, headers={"Authorization": "Bearer other"}, timeout=60) as client,
    ):
        alone_s = _seconds(client, clip)
        flood = [_post(server.client, long_recording(40)) for _ in range(30)]
        codes = [answer.status_code for answer in flood]
        assert set(codes) == {202, 429}
        assert {answer.headers["retry-after"] for answer in flood if answer.status_code == 429} == {"60"}
        beside_s = _seconds(client, clip)
        ids = [answer.json()["id"] for answer in flood if answer.status_code == 202]
        done = -_succeeded(server.client, ids)
        other = _post(client, clip)
        assert other.status_code == 202
        until(lambda: _succeeded(client, [other.json()["id"]]))
        done += _succeeded(server.client, ids)
    assert done <= 1
    measured("beside_ratio", beside_s / alone_s)
    note(f"of a key's {codes.count(202)} jobs {done} ended before another key's job; {codes.count(429)} more got 429")


def _post(client, audio):
    return client.post("/v1/jobs", files={"file": ("a.wav", audio)}, data={"model": "whisper-1"})


def _succeeded(client, ids):
    return sum(client.get(f"/v1/jobs/{identity}").json()["status"] == "succeeded" for identity in ids)


def _seconds(client, clip):
    """The median of five requests."""
    took = []
    for _ in range(5):
        began_s = time.monotonic()
        answer = client.post("/v1/audio/transcriptions", files={"file": ("a.wav", clip)}, data={"model": "whisper-1"})
        took.append(time.monotonic() - began_s)
        assert answer.status_code == 200, answer.text
    return sorted(took)[2]


def _limit_files(server, size):
    """Writes of the server beyond so many bytes of a file fail, as on a full disk. Its log is below the limit."""
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_disk_that_fills_refuses_in_words_and_serves_again(tmp_path, sample, fake_sample):
    """The recording of a job, then an upload itself: 503 with a code, nothing half on the disk, and what was there
    before is there; with space again the same request is accepted."""
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    temporary.mkdir()
    large = recordings.wav(np.zeros(16_000 * 60, np.int16))
    log = {"LOG_LEVEL": "ERROR"}
    with running(tmp_path / "log", STATE_DIR=str(state), TMPDIR=str(temporary), **log, **fake_sample) as server:
        kept = submit(server, sample[0], response_format="text")
        events(server, kept["id"])
        kept_files = sorted(path.name for path in (state / "jobs").iterdir())
        for limit, audio, code in ((200_000, large, "uploads_unavailable"), (0, sample[0], "jobs_unavailable")):
            _limit_files(server, limit)
            answer = _post(server.client, audio)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
            assert int(answer.headers["retry-after"]) > 0
            assert sorted(path.name for path in (state / "jobs").iterdir()) == kept_files
            assert not list(temporary.iterdir())
            assert server.client.get(f"/v1/jobs/{kept['id']}/result").text == sample[1] + "\n"
        _limit_files(server, resource.RLIM_INFINITY)
        again = submit(server, large)
        assert events(server, again["id"])[-1]["status"] == "succeeded"


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, sample, fake_sample):
    """Requests are answered while every line of the log fails, as on a full disk."""
    for as_json in ("true", "false"):
        state = {"STATE_DIR": str(tmp_path), "LOG_JSON": as_json}
        with running(Path("/dev/full"), **state, **fake_sample) as server:
            for _ in range(3):
                assert server.transcribe(sample[0]).json()["text"] == sample[1]


# The server's own clock alone: a decoder may not open the file that the library looks at.
WITH_ITS_CLOCK = (
    "-c",
    "import os, runpy, sys; del os.environ['LD_PRELOAD']; sys.argv[0] = 'asr_server'; "
    "runpy.run_module('asr_server', run_name='__main__', alter_sys=True)",
    "serve",
)


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs faketime, which `make nightly` installs as root")
@pytest.mark.parametrize("jump", ["+20y", "-20y"])
def test_a_clock_that_jumps_costs_nothing(tmp_path, sample, jump):
    """20 years forth or back in the middle of a job: it is done, its result stays, also after a start of the server at
    that time, and an ephemeral key of the new time opens a session."""
    library = subprocess.run(["faketime", "-m", "now", "printenv", "LD_PRELOAD"], capture_output=True, text=True).stdout
    now, state = tmp_path / "now", str(tmp_path / "state")
    now.write_text("+0")
    clock = {
        "program": WITH_ITS_CLOCK,
        "LD_PRELOAD": library.strip(),
        "FAKETIME_TIMESTAMP_FILE": str(now),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    # Not the scripted engine, which cannot be loaded under faketime.
    keys = {"API_KEYS": "one", "MODEL_ID": "moonshine-tiny-en"}
    with running(tmp_path / "log", STATE_DIR=state, JOB_TTL="600", **clock, **keys) as server:
        job = submit(server, long_recording(2), response_format="text")
        now.write_text(jump)
        made = server.client.post("/v1/realtime/client_secrets", json={}).json()
        year = 60 * 60 * 24 * 365
        assert abs(made["expires_at"] - time.time()) > year
        last = events(server, job["id"])[-1]
        assert last["status"] == "succeeded", last
        assert server.transcribe(sample[0]).status_code == 200
        url, headers = f"ws://127.0.0.1:{server.port}/v1/realtime", {"Authorization": f"Bearer {made['value']}"}
        with connect(url, additional_headers=headers) as guest:
            assert json.loads(guest.recv(60))["type"] == "session.created"
        assert server.health()["uptime_s"] < 600
        time.sleep(1.5)
        words = server.client.get(f"/v1/jobs/{job['id']}/result").text
        assert words.strip()
        assert "Traceback" not in server.log()
    with running(tmp_path / "log2", STATE_DIR=state, JOB_TTL="600", **clock, **keys) as server:
        time.sleep(1.5)
        assert server.client.get(f"/v1/jobs/{job['id']}/result").text == words
