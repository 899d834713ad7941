"""Files and directories that a server uses vanish while it runs, as cleaners of temporary files delete them."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from E2Etest.drive import recordings
from E2Etest.drive.process import running

pytestmark = pytest.mark.guarantee("vanished")

AT_ONCE = 4
WATCHED_S = 30.0


@pytest.fixture
def temporary(tmp_path):
    """The directory for temporary files of a server."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def large():
    """More than what is kept in memory, so that it is in a temporary file: several spans."""
    return recordings.wav(np.tile(np.concatenate([recordings.samples(), np.zeros(32_000, np.int16)]), 8))


@contextmanager
def _serving(tmp_path, temporary, sample):
    with running(tmp_path / "log", TMPDIR=str(temporary), IDLE_TIMEOUT="0") as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        yield server


def _answered_after_s(ask):
    """The time until nobody of some callers at once is refused. What is refused may be tried again."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            asked_s = time.monotonic()
            answers = list(pool.map(lambda _: ask(), range(AT_ONCE)))
            refused = [answer for answer in answers if answer.status_code != 200]
            if not refused:
                return asked_s - began_s, answers
            for answer in refused:
                assert (answer.status_code, 1 <= int(answer.headers["retry-after"]) <= 60) == (503, True)
            assert time.monotonic() < began_s + WATCHED_S, refused[0].text
            time.sleep(0.2)


@pytest.mark.parametrize("what", ["small", "large"])
def test_requests_are_answered_after_the_temporary_directory_has_vanished(
    tmp_path, temporary, sample, large, what, measured, note
):
    """The server creates the directory again, readable only for its own user."""
    body = large if what == "large" else sample[0]
    with _serving(tmp_path, temporary, sample) as server:
        words = server.transcribe(body).json()["text"]
        shutil.rmtree(temporary)
        again_s, answers = _answered_after_s(lambda: server.transcribe(body))
        assert {answer.json()["text"] for answer in answers} == {words}
        assert temporary.stat().st_mode & 0o077 == 0
        assert "Traceback" not in server.log()
    measured("again_s", again_s)
    note(f"temporary directory, {what} uploads; last refused after {again_s:.1f} s")


def test_without_a_usable_temporary_directory_uploads_are_refused_until_there_is_one(
    tmp_path, temporary, sample, large, measured
):
    """A file is in its place, so that it cannot be made: 503 with a stable code and words, and no traceback."""
    with _serving(tmp_path, temporary, sample) as server:
        shutil.rmtree(temporary)
        temporary.write_bytes(b"")
        assert server.transcribe(recordings.sample()[0]).json()["text"] == sample[1]
        for body in (sample[0], large):
            refused = server.transcribe(body)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "uploads_unavailable")
            assert "Not a directory" in error["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert server.client.get("/livez").status_code == 200
        temporary.unlink()
        again_s, answers = _answered_after_s(lambda: server.transcribe(sample[0]))
        assert {answer.json()["text"] for answer in answers} == {sample[1]}
        measured("again_s", again_s)
        assert "Traceback" not in server.log()
