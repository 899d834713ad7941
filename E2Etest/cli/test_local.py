"""`asr-server transcribe --local`: the same text without a server, from a worker that ends with the command."""

import os
import signal
import tempfile
import time
import wave
from types import SimpleNamespace

import numpy as np
import pytest

from E2Etest.cli.commands import command, run, started
from E2Etest.drive import procfs, recordings

pytestmark = pytest.mark.integration


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("line", "code"),
    [
        # The broken one has its line on stderr; libraries write nothing.
        ("transcribe --quiet hello.wav broken.wav more/again.flac", 1),
        ("transcribe --stream hello.wav", 0),
        ("subtitles hello.wav --output - --quiet --max-line-chars 20", 0),
    ],
)
def test_the_answers_are_those_of_a_server(server, talks, line, code):
    """`--local` passes the options on, and ignores keys in the environment."""
    local = command(*line.split(), "--local", cwd=talks, MODEL_ID="demo", API_KEYS="of-a-server")
    served = command(*line.split(), "--server", server.base, cwd=talks)
    assert (local.stdout, local.stderr) == (served.stdout, served.stderr)
    assert local.stdout
    assert local.returncode == served.returncode == code


@pytest.mark.slow("starts a process that speaks")
def test_a_worker_speaks(tmp_path):
    """The WAV file states its length."""
    text = "one two three four five six"
    done = run("speak", "--local", text, "-o", "a.wav", cwd=tmp_path, MODEL_ID="fake", SPEECH="fake")
    assert (done.returncode, done.stderr) == (0, "")
    with wave.open(str(tmp_path / "a.wav")) as found:
        assert 24_000 < found.getnframes() < 48_000


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize(
    ("line", "changes", "word"),
    [
        ("transcribe hello.wav", {"QUANTIZE": "fp8"}, "QUANTIZE"),
        ("transcribe hello.wav", {"MODEL_ID": "/none"}, "/none"),
        ("speak Hello. -o a.mp3", {"MODEL_ID": "fake", "SPEECH": "off"}, "SPEECH=off"),
        ("translate hello.wav --to de", {"MODEL_ID": "fake"}, "OPENAI_BASE_URL"),
    ],
)
def test_settings_that_cannot_work_exit_with_2(talks, line, changes, word):
    """The message names the setting, without a traceback."""
    done = run(*line.split(), "--local", cwd=talks, **({"MODEL_ID": "demo"} | changes))
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


@pytest.fixture
def long_local(tmp_path):
    """A command over three quarters of an hour, and its worker, which ends in any case and leaves no file."""
    talk = tmp_path / "talk.wav"
    talk.write_bytes(recordings.wav(np.resize(recordings.samples(), 45 * 60 * 16_000)))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        process = started("transcribe", "--local", "--model", "demo", talk, TMPDIR=folder)
        worker, give_up_s = None, time.monotonic() + 60
        while worker is None:
            assert time.monotonic() < give_up_s
            worker = procfs.engine_of(SimpleNamespace(process=process))
        yield process, worker
        process.kill()
        process.communicate()
        procfs.wait_until_gone(worker, wait_s=20)
        # Other programs, such as a compiler, may leave a folder.
        assert [name for name in os.listdir(folder) if name.startswith(("asr-server", "tmp"))] == []


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize("after_s", [0.0, pytest.param(5.0, marks=pytest.mark.nightly)])
def test_ctrl_c_ends_it_at_any_time(long_local, after_s):
    """Exit code 130, no traceback and no worker: at the start of the worker and later."""
    process, worker = long_local
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    printed, error = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert error.endswith(": stopped before a recording was finished, and no file was written.\n")
    procfs.wait_until_gone(worker, wait_s=0)


@pytest.mark.nightly
def test_a_worker_does_not_outlive_the_command(long_local):
    """Also where the command is killed: the fixture waits for the end of the worker and of its files."""
    process, _ = long_local
    time.sleep(2)
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL


@pytest.mark.slow("starts a server in a process of its own")
@pytest.mark.parametrize("after_s", [0.0, pytest.param(4.0, marks=pytest.mark.nightly)])
def test_a_worker_that_is_killed_ends_the_command(long_local, after_s):
    """At its start and at work: exit code 3, and the message says what happened."""
    process, worker = long_local
    time.sleep(after_s)
    os.kill(worker, signal.SIGKILL)
    printed, error = process.communicate(timeout=60)
    assert (process.returncode, printed) == (3, "")
    assert error == "asr-server transcribe: the worker process of --local was killed by signal 9.\n"
