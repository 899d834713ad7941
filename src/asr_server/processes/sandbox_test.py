"""The abilities that a sandboxed process has lost."""

import ast
import signal
import subprocess
import sys

import pytest

from asr_server.processes import sandbox

SCRIPT = """
import os, socket, subprocess, sys, signal
from asr_server.processes import sandbox
held = os.open("/dev/zero", os.O_RDONLY)
sandbox.prepare((1, held), os.getppid())
sandbox.lock(64 << 20, 1)
def attempt(action):
    try:
        action()
    except (OSError, MemoryError) as error:
        return type(error).__name__
    return "done"
actions = {
    "read": lambda: os.read(held, 10),
    "small": lambda: bytearray(1 << 20),
    "open": lambda: os.open("/dev/null", os.O_RDONLY),
    "socket": lambda: socket.socket(),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
    "big": lambda: bytearray(100 << 20),
    "unlink": lambda: os.unlink("/tmp/no-such-file"),
    "closed": lambda: os.read(0, 1),
}
print([(name, attempt(action)) for name, action in actions.items()], flush=True)
if sys.argv[1] == "spin":
    while True:
        pass
"""


def sandboxed(then: str) -> subprocess.CompletedProcess[bytes]:
    env = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run([sys.executable, "-c", SCRIPT, then], capture_output=True, env=env, timeout=60, check=False)


def test_a_filter_that_is_missing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says so at its start; here there is one."""
    assert sandbox.filters_calls()
    monkeypatch.setattr(sandbox, "_FILTER", b"")
    assert not sandbox.filters_calls()


def test_all_but_decoding_is_forbidden() -> None:
    """Only reading a descriptor that was kept and using memory within the limit still work."""
    outcomes: dict[str, str] = dict(ast.literal_eval(sandboxed("").stdout.decode()))
    assert {action for action, outcome in outcomes.items() if outcome == "done"} == {"read", "small"}
    assert outcomes.pop("big") == "MemoryError"
    assert set(outcomes.values()) <= {"done", "OSError", "PermissionError", "BlockingIOError"}


def test_cpu_time_is_bounded() -> None:
    assert sandboxed("spin").returncode in {-signal.SIGXCPU, -signal.SIGKILL}
