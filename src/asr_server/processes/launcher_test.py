"""The fork server's process."""

import signal
import subprocess

from asr_server.processes.launcher import ForkServer


def test_the_process_is_gone_when_it_has_ended():
    """`end` waits for the process that it kills: the system keeps nothing of it."""
    process = subprocess.Popen(["sleep", "60"])
    ForkServer("asr_server.audio.decoder_child").end(process)
    assert process.returncode == -signal.SIGKILL
