"""The state of other processes."""

from __future__ import annotations

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped the process (state T in proc(5)). False where that is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    except OSError:  # it has just ended, or there is no /proc
        return False
