"""Files and directories that a server uses vanish while it runs, as cleaners of temporary files delete them."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from E2Etest import recordings
from E2Etest.chaos.procfs import family, listening_files
from E2Etest.gateway.workers import worker_of
from E2Etest.live.session import act, data, open_session, upto_flush
from E2Etest.process import running

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.guarantee("vanished"), pytest.mark.timeout(300)]

AT_ONCE = 4
WATCHED_S = 30.0
MODES = pytest.mark.parametrize("gateway_mode", ["true", "false"], ids=["gateway", "alone"])


@pytest.fixture
def temporary(tmp_path):
    """The directory for temporary files of a server."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def sample():
    """The bundled recording in a format for which a decoder reads a file, and its words; a short WAV needs none."""
    return recordings.encoded("flac", "flac", rate=16_000), recordings.sample()[1]


@pytest.fixture(scope="module")
def large():
    """More than what is kept in memory, so that it is in a temporary file: several spans."""
    return recordings.wav(np.tile(np.concatenate([recordings.samples(), np.zeros(32_000, np.int16)]), 8))


@contextmanager
def _serving(tmp_path, temporary, gateway_mode, sample, **settings):
    """A server whose model is loaded."""
    settings |= {"GATEWAY_MODE": gateway_mode, "TMPDIR": str(temporary), "IDLE_TIMEOUT": "0"}
    with running(tmp_path / "log", **settings) as server:
        assert server.transcribe(sample[0]).json()["text"] == sample[1]
        yield server


def _answered_after_s(ask):
    """The time until nobody of some callers at once is refused. What is refused may be tried again."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            asked_s = time.monotonic()
            answers = list(pool.map(lambda _: ask(), range(AT_ONCE)))
            if {answer.status_code for answer in answers} == {200}:
                return asked_s - began_s, answers
            for answer in answers:
                if answer.status_code != 200:
                    assert (answer.status_code, 1 <= int(answer.headers["retry-after"]) <= 60) == (503, True)
            assert time.monotonic() < began_s + WATCHED_S, answers[0].text
            time.sleep(0.2)


def test_without_its_files_the_worker_is_reached_all_the_same(tmp_path, temporary, sample, speech, measured, note):
    """Every file is deleted on which a process of the gateway listens, and all temporary ones: requests at once, for
    which new connections to the worker are needed, a WebSocket, and an open session are served."""
    with _serving(tmp_path, temporary, "true", sample) as server, open_session(server) as before:
        before.send(data(speech[:20_000]))
        worker = worker_of(server)
        files = listening_files(family(server.process.pid))
        for path in [*files, *temporary.iterdir()]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        again_s, answers = _answered_after_s(lambda: server.transcribe(sample[0]))
        assert {answer.json()["text"] for answer in answers} == {sample[1]}
        with open_session(server) as after:
            after.send(data(speech))
            act(after, "flush")
            assert sample[1] in [message["text"] for message in upto_flush(after)]
        before.send(data(speech[20_000:]))
        act(before, "flush")
        assert sample[1] in [message["text"] for message in upto_flush(before)]
        assert server.client.get("/readyz").status_code == 200
        measured("again_s", again_s)
        survived = "the same worker" if worker_of(server) == worker else "another worker"
        note(f"socket files to delete: {len(files)}; {survived} answers, the first after {again_s:.1f} s")


@MODES
@pytest.mark.parametrize("large_first", [False, True], ids=["small", "large"])
def test_requests_are_answered_after_the_temporary_directory_has_vanished(
    tmp_path, temporary, sample, large, gateway_mode, large_first, measured, note
):
    """It is made again, for the server's user alone; also a worker that starts then is reached."""
    with _serving(tmp_path, temporary, gateway_mode, sample) as server:
        body = large if large_first else sample[0]
        words = server.transcribe(large).json()["text"] if large_first else sample[1]
        shutil.rmtree(temporary)
        again_s, answers = _answered_after_s(lambda: server.transcribe(body))
        assert {answer.json()["text"] for answer in answers} == {words}
        assert temporary.stat().st_mode & 0o077 == 0
        assert "Traceback" not in server.log()
        measured("again_s", again_s)
        what = "large" if large_first else "small"
        note(f"temporary directory, {what} uploads, GATEWAY_MODE={gateway_mode}: last refused after {again_s:.1f} s")


@MODES
def test_without_a_usable_temporary_directory_uploads_are_refused_until_there_is_one(
    tmp_path, temporary, sample, large, gateway_mode, measured
):
    """A file is in its place, so that it cannot be made: 503 with a stable code and words, and no traceback."""
    with _serving(tmp_path, temporary, gateway_mode, sample) as server:
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


@MODES
def test_a_server_starts_without_its_temporary_directory(tmp_path, temporary, sample, large, gateway_mode):
    """Another one of the system's is used, as everywhere in Python."""
    temporary.rmdir()
    with _serving(tmp_path, temporary, gateway_mode, sample) as server:
        assert server.transcribe(large).status_code == 200
        assert "Traceback" not in server.log()
