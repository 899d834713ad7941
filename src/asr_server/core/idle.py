"""The time for which something that takes memory has been out of use, after which it is given back."""

from __future__ import annotations

import time
from collections.abc import Callable


class IdleTimer:
    """Counts the time since the last use, `used_s`. A `timeout_s` of 0 is no timeout. `clock` is monotonic seconds.

    Takes no lock: a caller with several threads brings its own.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self.clock = clock
        self._holds = 0
        self.used_s = clock()

    def touch(self) -> None:
        """Note a use at this moment: the time counts from now."""
        self.used_s = self.clock()

    def hold(self) -> None:
        """Note a use from now until the `release` that belongs to this call."""
        self._holds += 1

    def release(self) -> None:
        """End one `hold`. The time counts from the last one."""
        self._holds -= 1
        self.touch()

    @property
    def idle_s(self) -> float:
        """Seconds since the last use; 0 while it is held."""
        return 0.0 if self._holds else self.clock() - self.used_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the timeout, 0 or less when it has passed; None while it is held or without a timeout."""
        if self._holds or self._timeout_s == 0:
            return None
        return self.used_s + self._timeout_s - self.clock()

    @property
    def expired(self) -> bool:
        """True if the timeout has passed."""
        return (remaining_s := self.remaining_s) is not None and remaining_s <= 0
