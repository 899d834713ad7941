"""`asr-server transcribe --local`: the same words without a server."""

import signal
import time

import numpy as np
import pytest

from asr_server.service.requests import ResponseFormat
from E2Etest import recordings
from E2Etest.cli.commands import command, started

pytestmark = pytest.mark.integration


def test_the_words_are_those_of_a_server(server, talks):
    """In order, a broken one among them; stderr holds its line and nothing of the libraries."""
    names = ["hello.wav", "broken.wav", "more/again.flac"]
    alone = command("transcribe", "--local", "--model", "demo", *names, cwd=talks)
    served = command("transcribe", "--server", server.base, *names, cwd=talks)
    assert alone.returncode == served.returncode == 1
    assert (alone.stdout, alone.stderr) == (served.stdout, served.stderr)


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(["--stream"], marks=pytest.mark.nightly), ["--format", "verbose_json", "--language", "en"]],
)
def test_options_reach_the_engine(server, talks, arguments):
    """Streamed words, and a format with all details, are those of a server."""
    alone = command("transcribe", talks / "hello.wav", "--local", *arguments, MODEL_ID="demo")
    served = command("transcribe", talks / "hello.wav", "--server", server.base, *arguments)
    assert alone.stdout == served.stdout != ""
    assert (alone.returncode, alone.stderr) == (0, "")
    assert ResponseFormat.VERBOSE_JSON.value in arguments or alone.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "word"), [({"QUANTIZE": "int8"}, "QUANTIZE"), ({"PORT": "x"}, "PORT"), ({"MODEL_ID": "/none"}, "/none")]
)
def test_settings_that_cannot_work_exit_with_2(talks, changes, word):
    """The message names the setting."""
    done = command("transcribe", talks / "hello.wav", "--local", **({"MODEL_ID": "demo"} | changes))
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after_s", [1.0, pytest.param(6.0, marks=pytest.mark.nightly)])
def test_ctrl_c_ends_it_also_while_the_model_is_loading(tmp_path, after_s):
    """Exit code 130 and no traceback, early on and later: three quarters of an hour are not transcribed by then."""
    talk = tmp_path / "talk.wav"
    talk.write_bytes(recordings.wav(np.resize(recordings.samples(), 45 * 60 * 16_000)))
    process = started("transcribe", "--local", "--model", "demo", talk)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=60)
    assert (process.returncode, printed, told) == (130, "", "")
