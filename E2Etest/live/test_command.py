"""`asr-server live` as a user runs it."""

import subprocess
import sys

import pytest

from E2Etest import recordings

pytestmark = pytest.mark.integration


def test_a_file_is_streamed_and_its_finals_are_printed(live_server, speech, said, tmp_path):
    """A WAV file of several times real time: the words on stdout, nothing else."""
    path = tmp_path / "speech.wav"
    path.write_bytes(recordings.wav(speech))
    command = [sys.executable, "-m", "asr_server", "live", "--file", str(path), "--server", live_server.base]
    done = subprocess.run([*command, "--speed", "0"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{said}\n", "")
