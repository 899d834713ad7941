"""The confinement of a child process, as the kernel shows it."""

import re
from pathlib import Path


def assert_confined(pid):
    """Check that the process has a filter of system calls and no privileges, and is the first to end without memory."""
    process = Path(f"/proc/{pid}")
    status = dict(re.findall(r"^(\w+):\s+(.*)$", (process / "status").read_text(), re.MULTILINE))
    assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)
    limits = (process / "limits").read_text()
    for name in ("open files", "processes", "file size", "core file size"):
        assert re.search(rf"^Max {name}\s+0\s+0", limits, re.MULTILINE), name
    assert int((process / "oom_score_adj").read_text()) == 1000
