"""`asr-server live` as a user runs it."""

import signal
import subprocess
import sys
import time

import pytest

from E2Etest.drive import recordings
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def command(speech, tmp_path):
    """The command that streams a file."""
    path = tmp_path / "speech.wav"
    path.write_bytes(recordings.wav(speech))
    return [sys.executable, "-m", "asr_server", "live", "--file", str(path), "--server"]


@pytest.mark.slow("speaks at the pace of speech to a command")
def test_a_file_is_streamed_and_its_finals_are_printed(cli_server, command):
    """A WAV file of several times real time: the words on stdout, nothing else."""
    done = subprocess.run([*command, cli_server.base, "--speed", "0"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{recordings.sample()[1]}\n", "")


@pytest.mark.slow("speaks at the pace of speech to a command")
def test_ctrl_c_ends_it_with_the_words_that_were_said(cli_server, command):
    """What was sent until then is printed; the exit code says that it was not all."""
    with subprocess.Popen([*command, cli_server.base], **PIPES, text=True) as process:
        cli_server.wait_for(lambda health: health["live"]["sessions"] > health["live"]["waiting"])
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert printed.strip()


@pytest.mark.slow("speaks at the pace of speech to a command")
def test_whoever_reads_the_words_may_leave(cli_server, command):
    """Exit code 141 and no word of it, as of every command."""
    with subprocess.Popen([*command, cli_server.base, "--speed", "0"], **PIPES) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.nightly
@pytest.mark.guarantee("resume")
def test_a_connection_that_breaks_is_made_anew(cli_server, command):
    """Cut twice, and kept away for a second: each word once, and a line on stderr for each cut."""
    with Proxy(cli_server.port) as proxy, subprocess.Popen([*command, proxy.base], **PIPES, text=True) as process:
        for away_s in (0.0, 1.0):
            cli_server.wait_for(lambda health: health["live"]["sessions"] > health["live"]["waiting"])
            time.sleep(0.5)
            proxy.refusing = True
            proxy.cut()
            time.sleep(away_s)
            proxy.refusing = False
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, f"{recordings.sample()[1]}\n"), errors
    assert errors.splitlines() == ["The connection broke; reconnecting."] * 2


def test_without_a_server_it_says_so(command):
    """Exit code 3, as of every command."""
    done = subprocess.run([*command, "http://127.0.0.1:9"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
