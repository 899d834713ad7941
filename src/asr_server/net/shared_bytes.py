"""One bound on the bytes that many queues hold together, with a fair share of it for each.

A queue may hold as much as is free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
switches", 1998): one alone gets half of the bound, two a third each, and something is always left for the next. Used
from one event loop only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asr_server.core.errors import Overloaded

LIMIT_BYTES = 128 * 1024 * 1024
QUEUE_BYTES = 32 * 1024 * 1024  # the most that one queue may hold
PIECE_BYTES = 64 * 1024  # of a large frame: each waits for room on its own
RESERVED_BYTES = 256 * 1024  # what a queue may hold however little is free: a speaker is never that far behind


@dataclass(slots=True, eq=False)
class Share:
    """The bytes that one queue holds of the bound."""

    of: SharedBytes  # the bound
    size_bytes: int = 0

    def set(self, size_bytes: int) -> None:
        """Note that the queue holds this much now."""
        self.of.held_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes


class SharedBytes:
    """The bound. What is sent in one piece is accepted in parts, so that a queue's owner waits when it is too long."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    @property
    def queue_bytes(self) -> int:
        """Return how much one queue may hold now. One that already holds more takes nothing until it has shrunk."""
        return max(RESERVED_BYTES, min(QUEUE_BYTES, self._limit_bytes - self.held_bytes))

    def share(self) -> Share:
        """Return the share of a new queue. Set it to 0 in the end."""
        return Share(self)

    @contextmanager
    def in_hand(self, size_bytes: int) -> Iterator[None]:
        """Count something large that arrived whole, while its parts wait for their places in a queue.

        Raises `Overloaded` if it does not fit with everything else.
        """
        if size_bytes > RESERVED_BYTES and self.held_bytes + size_bytes > self._limit_bytes:
            raise Overloaded("Too much live audio is waiting for this large message; try again later.", retry_after_s=5)
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes
