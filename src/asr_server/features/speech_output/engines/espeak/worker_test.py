"""The abilities of the child that speaks a caller's text, and their limits."""

import re
import subprocess
import sys
from pathlib import Path

from asr_server.features.speech_output.engines.espeak.worker import SpeakRequest
from asr_server.processes.conftest import assert_confined
from E2Etest.drive.procfs import family

# A library whose `espeak_Synth` is taken over by its text.
SCRIPT = """
import os, socket, sys
from asr_server.features.speech_output.engines.espeak import worker
from asr_server.features.speech_output.engines.espeak.worker import SpeakRequest

class Library:
    def espeak_SetVoiceByName(self, name):
        os.close(os.open("/dev/null", os.O_RDONLY))
        return 0
    def espeak_SetSynthCallback(self, callback):
        pass
    def espeak_Synth(self, text, *_):
        found = [attempt(action) for action in actions]
        os.write(1, repr(found).encode())
        return 0

def attempt(action):
    try:
        action()
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return "done"

actions = [
    lambda: os.open("/etc/passwd", os.O_RDONLY),
    socket.socket,
    os.fork,
    lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(os.getppid(), 0),
    lambda: os.read(0, 1),
    lambda: os.write(2, b"x"),
    lambda: bytearray(100 << 20),
]
worker._speak(Library(), SpeakRequest("Hello.", "en"), os.getppid())
os._exit(0)
"""


def run(script):
    command, env = [sys.executable, "-c", script], {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env, timeout=60, check=False)


def test_a_child_can_do_nothing_but_write_its_samples():
    """The child chose its voice from a file before; afterwards it opens, connects, starts, signals and reads
    nothing."""
    done = run(SCRIPT)
    denied = "PermissionError"
    assert done.stdout.decode() == repr([denied, denied, denied, denied, denied, "OSError", "OSError", "MemoryError"])
    assert done.returncode == 0


def test_the_child_that_speaks_is_confined(espeak):
    """The kernel shows filter, no privileges and limits; the child is ended first if memory runs short."""
    speaking = espeak.speak(SpeakRequest("This is a long sentence. " * 40, "en-US+m3"))
    next(speaking)  # the pipe is full before the end, and so the child waits
    _, child = family(espeak.pid)
    assert_confined(child)
    limits = Path(f"/proc/{child}/limits").read_text()
    assert re.search(r"^Max cpu time\s+10\s+10", limits, re.MULTILINE)
    assert sum(map(len, speaking)) > 0


def test_a_child_whose_process_has_ended_does_not_begin():
    """The child would have nobody to speak to, and nothing would end it."""
    done = run(SCRIPT.replace(", os.getppid())\n", ", 1)\n"))
    assert (done.returncode, done.stdout) == (1, b"")
