"""`asr-server live` as a user runs it."""

import signal
import time

import pytest

from E2Etest.cli.commands import run, started
from E2Etest.drive import recordings
from E2Etest.proxy import Proxy

pytestmark = [pytest.mark.websocket, pytest.mark.integration]


@pytest.fixture
def streaming(speech, tmp_path):
    """The arguments that stream a file; the address of the server follows."""
    path = tmp_path / "speech.wav"
    path.write_bytes(recordings.wav(speech))
    return "live", "--file", path, "--server"


def _wait_for_session(server):
    server.wait_for(lambda health: health["live"]["sessions"] > health["live"]["waiting"])


def test_a_file_is_streamed_and_its_finals_are_printed(cli_server, streaming):
    """A WAV file of several times real time: the words on stdout, nothing else."""
    done = run(*streaming, cli_server.base, "--speed", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{recordings.sample()[1]}\n", "")


@pytest.mark.slow("speaks at the pace of speech to a command")
def test_ctrl_c_ends_it_with_the_words_that_were_said(cli_server, streaming):
    """What was sent until then is printed; the exit code says that it was not all."""
    with started(*streaming, cli_server.base) as process:
        _wait_for_session(cli_server)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert printed.strip()


@pytest.mark.slow("runs the command in a process of its own")
def test_whoever_reads_the_words_may_leave(cli_server, streaming):
    """Exit code 141 and no word of it, as of every command."""
    with started(*streaming, cli_server.base, "--speed", "0") as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, "")


@pytest.mark.nightly
@pytest.mark.guarantee("resume")
def test_a_connection_that_breaks_is_made_anew(cli_server, streaming):
    """Cut twice, and kept away for a second: each word once, and a line on stderr for each cut."""
    with Proxy(cli_server.port) as proxy, started(*streaming, proxy.base) as process:
        for away_s in (0.0, 1.0):
            _wait_for_session(cli_server)
            time.sleep(0.5)
            proxy.refusing = True
            proxy.cut()
            time.sleep(away_s)
            proxy.refusing = False
        printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, f"{recordings.sample()[1]}\n"), errors
    assert errors.splitlines() == ["The connection broke; reconnecting."] * 2


def test_without_a_server_it_says_so(streaming):
    """Exit code 3, as of every command."""
    done = run(*streaming, "http://127.0.0.1:9")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
