"""The C library's heap, whose own rules for giving memory back suit short programs. With others nothing happens."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_LIBRARY = "libc.so.6"
_M_ARENA_MAX = -8  # malloc.h
_ELSEWHERE = (OSError, AttributeError)  # another C library: it has its own policy


def share_arenas() -> None:
    """Let the threads of the process share two heaps. By default each gets its own, whose holes no other fills: 48 min
    of spans of all lengths then left 260 MiB behind instead of 205 (demo model, 2 cores)."""
    with suppress(*_ELSEWHERE):
        ctypes.CDLL(_LIBRARY).mallopt(_M_ARENA_MAX, 2)


def free_bytes() -> int:
    """What the heaps hold and nobody uses; 0 where the library does not say."""
    with suppress(*_ELSEWHERE):
        ask = ctypes.CDLL(_LIBRARY).mallinfo2
        ask.restype = _Info
        return int(ask().fordblks)
    return 0


def trim() -> None:
    """Return pages of the heaps that hold nothing to the system. Takes milliseconds, in which allocations wait."""
    with suppress(*_ELSEWHERE):
        ctypes.CDLL(_LIBRARY).malloc_trim(0)


class _Info(ctypes.Structure):
    """`struct mallinfo2` of malloc.h, sums over all heaps."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]
