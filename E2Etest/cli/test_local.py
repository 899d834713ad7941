"""`asr-server transcribe --local`: the same text without a server, from a worker that ends with the command."""

import os
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from asr_server.recordings.requests import ResponseFormat
from E2Etest.cli.commands import command, started
from E2Etest.drive import recordings

pytestmark = pytest.mark.integration


@pytest.mark.nightly
def test_the_words_are_those_of_a_server(server, talks):
    """In order, with a broken recording among them. The broken one has its line on stderr; libraries write nothing."""
    names = ["hello.wav", "broken.wav", "more/again.flac"]
    local = command("transcribe", "--local", "--model", "demo", "--quiet", *names, cwd=talks)
    served = command("transcribe", "--server", server.base, "--quiet", *names, cwd=talks)
    assert local.returncode == served.returncode == 1
    assert (local.stdout, local.stderr) == (served.stdout, served.stderr)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "arguments",
    [["--stream"], ["--format", "verbose_json", "--language", "en"]],
)
def test_options_reach_the_engine(server, talks, arguments):
    """Streamed text, and a format with all details, are those of a server. Keys in the environment do not matter."""
    local = command("transcribe", talks / "hello.wav", "--local", *arguments, MODEL_ID="demo", API_KEYS="of-a-server")
    served = command("transcribe", talks / "hello.wav", "--server", server.base, *arguments)
    assert local.stdout == served.stdout != ""
    assert (local.returncode, local.stderr) == (0, "")
    assert ResponseFormat.VERBOSE_JSON.value in arguments or local.stdout.count("\n") == 1


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize(
    ("changes", "word"), [({"QUANTIZE": "fp8"}, "QUANTIZE"), ({"PORT": "x"}, "PORT"), ({"MODEL_ID": "/none"}, "/none")]
)
def test_settings_that_cannot_work_exit_with_2(talks, changes, word):
    """The message names the setting."""
    done = command("transcribe", talks / "hello.wav", "--local", **({"MODEL_ID": "demo"} | changes))
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def temporary():
    """A directory for temporary files."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def long_local(tmp_path, temporary):
    """A command over three quarters of an hour. At the end none of its workers runs, and none of its files is left."""
    talk = tmp_path / "talk.wav"
    talk.write_bytes(recordings.wav(np.resize(recordings.samples(), 45 * 60 * 16_000)))
    process = started("transcribe", "--local", "--model", "demo", talk, TMPDIR=str(temporary))
    yield process
    process.kill()
    process.communicate()
    deadline_s = time.monotonic() + 20
    while _workers(temporary) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert (_workers(temporary), _files(temporary)) == ([], [])


def _files(temporary):
    """Return what the command and its worker keep there; other programs, such as a compiler, may leave a folder."""
    return [entry.name for entry in temporary.iterdir() if entry.name.startswith(("asr-server", "tmp"))]


def _workers(temporary):
    """The worker processes whose temporary files are in `temporary`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if b"--socket" in arguments and b"TMPDIR=" + os.fsencode(temporary) in environment:
            found.append(int(pid))
    return found


def _worker(temporary):
    """The worker, once it runs."""
    deadline_s = time.monotonic() + 60
    while not (found := _workers(temporary)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found[0]


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize("after_s", [0.0, pytest.param(5.0, marks=pytest.mark.nightly)])
def test_ctrl_c_ends_it_at_any_time(long_local, temporary, after_s):
    """Exit code 130, no traceback and no worker: at the start of the worker and later."""
    _worker(temporary)
    time.sleep(after_s)
    long_local.send_signal(signal.SIGINT)
    printed, error = long_local.communicate(timeout=60)
    assert (long_local.returncode, printed) == (130, "")
    assert error.endswith(": stopped before a recording was finished, and no file was written.\n")
    assert not _workers(temporary)


@pytest.mark.nightly
def test_a_worker_does_not_outlive_the_command(long_local, temporary):
    """Also where the command is killed: the fixture waits for the end of the worker and of its files."""
    _worker(temporary)
    time.sleep(2)
    long_local.kill()
    assert long_local.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize("after_s", [0.0, pytest.param(4.0, marks=pytest.mark.nightly)])
def test_a_worker_that_is_killed_ends_the_command(long_local, temporary, after_s):
    """At its start and at work: exit code 3, and the message says what happened."""
    worker = _worker(temporary)
    time.sleep(after_s)
    os.kill(worker, signal.SIGKILL)
    printed, error = long_local.communicate(timeout=60)
    assert (long_local.returncode, printed) == (3, "")
    assert error == "asr-server transcribe: the worker process of --local was killed by signal 9.\n"
