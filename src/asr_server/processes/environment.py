"""The environment and the state of other processes."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_MOST_FILES = 65_536


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped the process (state T in proc(5)). False where that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:  # it has just ended, or there is no /proc
        return False


def raise_file_limit() -> None:
    """Let the process open as many files and connections as the system allows it, but no more than `_MOST_FILES`.

    The limit that it begins with is made for programs that call `select`: 1,100 idle connections would shut out
    everybody else.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module of this package."""
    return (sys.executable, "-P", "-m", module, *arguments)


def python_path() -> str:
    """Return the PYTHONPATH by which another process imports what this one does."""
    package_root = str(Path(__file__).parents[2])
    return os.pathsep.join([package_root, *(entry for entry in sys.path if entry)])


def child_environment() -> dict[str, str]:
    """Return the environment of a Python process that confines itself: keys and tokens stay in the server, and numpy
    starts no threads, which forks would lose."""
    return {
        "PYTHONPATH": python_path(),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
