"""Idle timeouts, after which memory is released, and free heap memory, which is returned to the system.

One task ends all idle child processes. It does not unload models: only the engine thread may touch them, between two
of its steps, and that thread sleeps until the first model is due anyway (`schedule/thread.py`).

Heaps are trimmed only with glibc, whose defaults suit short programs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

_LEAST_S = 0.01  # between two rounds of `end_when_idle`
TRIM_EVERY_S = 15.0
QUIET_SHARE = 0.05  # the share of one core below which the process has no load
_KEPT_FREE_BYTES = 64 * 1024 * 1024


class IdleTimer:
    """Counts the time since the last use, `used_s`. A `timeout_s` of 0 means no timeout. `clock` is monotonic seconds.

    Takes no lock: a caller with several threads needs its own.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self.clock = clock
        self._holds = 0
        self.used_s = clock()

    def touch(self) -> None:
        self.used_s = self.clock()

    def hold(self) -> None:
        """Start a use, which lasts until the matching `release`."""
        self._holds += 1

    def release(self) -> None:
        """End one `hold`. The idle time counts from the last release."""
        self._holds -= 1
        self.touch()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._holds else self.clock() - self.used_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the timeout, 0 or less when it has passed; None during a `hold` or without a timeout."""
        if self._holds or self._timeout_s == 0:
            return None
        return self.used_s + self._timeout_s - self.clock()

    @property
    def expired(self) -> bool:
        return (remaining_s := self.remaining_s) is not None and remaining_s <= 0


class IdleOwner(Protocol):
    """Starts a process when it is needed. `idle` counts the time since the last use."""

    idle: IdleTimer

    async def close_idle(self) -> None:
        """End the process if there is one. Called when the timeout has passed."""


async def end_when_idle(owners: Sequence[IdleOwner], timeout_s: float) -> None:
    """Loop for ever and end idle processes. `timeout_s` is the timeout of all owners; 0 means none."""
    while timeout_s:
        # An owner that is held now expires in `timeout_s` at the earliest.
        waits_s = (wait_s for owner in owners if (wait_s := owner.idle.remaining_s) is not None)
        await asyncio.sleep(max(_LEAST_S, min(waits_s, default=timeout_s)))
        await end_expired(owners)


async def end_expired(owners: Sequence[IdleOwner]) -> None:
    for owner in owners:
        if owner.idle.expired:
            await owner.close_idle()
            owner.idle.touch()  # check again after another timeout: the owner may have kept its process for a reason


_LIBRARY = "libc.so.6"
_M_ARENA_MAX = -8  # malloc.h
_OTHER_LIBRARY = (OSError, AttributeError)  # raised if the C library is not glibc


def share_heaps() -> None:
    """Let the threads of the process share two heaps.

    By default each thread gets its own heap, and no other thread uses the free blocks in it: 48 min of spans of all
    lengths then left 260 MiB behind instead of 205 (demo model, 2 cores).
    """
    with suppress(*_OTHER_LIBRARY):
        ctypes.CDLL(_LIBRARY).mallopt(_M_ARENA_MAX, 2)


def free_heap_bytes() -> int:
    """Return the free bytes of the heaps; 0 if the library does not report them."""
    with suppress(*_OTHER_LIBRARY):
        mallinfo2 = ctypes.CDLL(_LIBRARY).mallinfo2
        mallinfo2.restype = _Info
        return int(mallinfo2().fordblks)
    return 0


def trim_heap() -> None:
    """Return free pages of the heaps to the system. Takes milliseconds, during which allocations wait."""
    with suppress(*_OTHER_LIBRARY):
        ctypes.CDLL(_LIBRARY).malloc_trim(0)


class _Info(ctypes.Structure):
    """`struct mallinfo2` of malloc.h, sums over all heaps."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


async def keep_heap_trimmed() -> None:
    """Loop for ever and return free memory to the system.

    Under load, the unused memory in the C library's heaps grows: by 40 MiB in 20 minutes. The next batch needs some of
    it again, so heaps are trimmed only above `_KEPT_FREE_BYTES`. After the load, nothing else collects garbage: 1,000
    readers that had left held 55 MiB.
    """
    spent_s = time.process_time()
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        before_s, spent_s = spent_s, time.process_time()
        if spent_s - before_s < QUIET_SHARE * TRIM_EVERY_S:
            await asyncio.to_thread(gc.collect)
        if await asyncio.to_thread(free_heap_bytes) > _KEPT_FREE_BYTES:
            await asyncio.to_thread(trim_heap)
