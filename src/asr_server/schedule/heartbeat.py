"""The time of the engine thread's last progress. Written by that thread alone and read from any."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """Ticks with every outcome, and inside of steps where the batch reports progress. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.tick()

    def tick(self) -> None:
        """Note that the thread makes progress now."""
        self._ticked_s = self._clock()

    @property
    def age_s(self) -> float:
        """Seconds since the last tick."""
        return self._clock() - self._ticked_s
