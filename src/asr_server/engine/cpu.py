"""The processor's abilities and this process's share of it, read from the kernel's files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

# Instructions that add up products of 8-bit integers in 32 bits, and instructions that multiply in bfloat16, the widest
# first. Without the former, 16-bit sums overflow: random layers were off by 3 to 30 % instead of 1 % (2026-11-22).
INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni")
BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class CpuShare:
    """The number of computing threads that fits this process."""

    threads: int  # how many computing threads this process should have
    reason: str  # why this number


ONE_THREAD = CpuShare(1, "one for the one core that this process may use")


def flags(root: Path = _ROOT) -> frozenset[str]:
    """Return the instruction sets of the processor, by the kernel's names; empty if the kernel lists none."""
    file = root / "proc/cpuinfo"
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ()))


def share(root: Path = _ROOT, allowed: Collection[int] | None = None) -> CpuShare:
    """Return one thread for each core of `allowed` (default: this process' affinity mask), or fewer if a control group
    has a lower quota.

    Two threads on one core share its multipliers. With more threads than the quota allows, the kernel stops all of them
    for the rest of each period, and a pass waits for its slowest thread.
    """
    allowed = allowed or os.sched_getaffinity(0)
    # The CPUs of the core of each logical CPU.
    siblings = {cpu: root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in allowed}
    cores = len({_text(file) or str(cpu) for cpu, file in siblings.items()})
    quota = min(_quotas(root), default=float(cores))
    if quota < cores:
        return CpuShare(max(1, int(quota)), f"the control group's quota is {quota:g} CPUs")
    return CpuShare(cores, f"one for each core that this process may use ({len(allowed)} logical CPUs)")


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quotas, in CPUs, of this process' control group and its parents, in both versions of the interface.

    A container often sees its own group as the root, while /proc names it as the host does. So the root is always read.
    """
    file = root / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in (controllers, "cpu", "") if controllers else ("", "unified"):
            base = root / "sys/fs/cgroup" / mount
            place = base / path.lstrip("/")
            for directory in (place, *place.parents):
                if directory.is_relative_to(base):
                    yield from _quota(directory)


def _quota(directory: Path) -> Iterator[float]:
    second, _, period_us = _text(directory / "cpu.max").partition(" ")  # microseconds; the quota may be `max`
    first = _text(directory / "cpu.cfs_quota_us"), _text(directory / "cpu.cfs_period_us")  # -1 is no quota
    for quota, period in ((second, period_us), first):
        if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
            yield int(quota) / int(period)


def _text(file: Path) -> str:
    return file.read_text().strip() if file.is_file() else ""
