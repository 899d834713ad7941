"""When the engine thread last moved. One writer; read from anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """Beats with every outcome, and inside of steps where the batch says so. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.tick()

    def tick(self) -> None:
        """It moves now."""
        self._ticked_s = self._clock()

    @property
    def age_s(self) -> float:
        """Seconds since it last moved."""
        return self._clock() - self._ticked_s
