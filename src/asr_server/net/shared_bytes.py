"""A limit on the bytes that many queues hold together, with a fair share for each.

A queue may hold as many bytes as are free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
packet switches", 1998): a single queue gets half of the limit, two queues a third each, and some is always free for the
next one. Used from one event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asr_server.core.errors import Overloaded

LIMIT_BYTES = 128 * 1024 * 1024
QUEUE_BYTES = 32 * 1024 * 1024  # the most that one queue may hold
PIECE_BYTES = 64 * 1024  # a large frame is divided into pieces that wait for room one by one
RESERVED_BYTES = 256 * 1024  # a queue may always hold this much, which is more than a speaker is ever behind


class SharedBytes:
    """The limit and the bytes that all queues hold."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[object, int] = {}  # the bytes of each owner of queues that holds any

    @property
    def queue_bytes(self) -> int:
        """Return how much one queue may hold now. A queue that holds more takes nothing until it has shrunk."""
        return max(RESERVED_BYTES, min(QUEUE_BYTES, self._limit_bytes - self.held_bytes))

    def hold(self, owner: object, size_bytes: int) -> None:
        """Set the number of bytes that the owner's queues hold."""
        self.held_bytes += size_bytes - self._held.pop(owner, 0)
        if size_bytes:
            self._held[owner] = size_bytes

    @contextmanager
    def in_hand(self, size_bytes: int) -> Iterator[None]:
        """Count a large frame while its pieces wait for room in a queue. Raises `Overloaded` if it does not fit."""
        if size_bytes > RESERVED_BYTES and self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded("Too much live audio is waiting for this large message; try again later.", retry_after_s=5)
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes
