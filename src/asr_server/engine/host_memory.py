"""The memory of the machine that is free."""

from __future__ import annotations

import math
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the bytes that the kernel and the container's limit leave."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(min(int(rows["MemAvailable"].split()[0]) * 1024, _left_bytes()))


def _left_bytes() -> float:
    """Return the bytes that a container's limit leaves; files that the kernel caches for it count as free."""
    limit = _CGROUP / "memory.max"
    text = limit.read_text().strip() if limit.is_file() else "max"
    if text == "max":
        return math.inf
    used = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    cached = int(used["active_file"]) + int(used["inactive_file"])
    return max(0, int(text) - int((_CGROUP / "memory.current").read_text()) + cached)
