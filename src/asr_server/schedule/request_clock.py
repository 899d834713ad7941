"""The clock of the requests' time limits. It stands still while a model is being loaded or downloaded."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class RequestClock:
    """Monotonic seconds, without those of loads. The methods may be called from any thread.

    A load that shows no progress stops the clock for at most `patience_s`, and each sign of progress begins that time
    anew. `clock` is the system's monotonic seconds.
    """

    def __init__(self, patience_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        # Guards what follows. Nothing else is locked or called while it is held, but for `clock`.
        self._lock = threading.Lock()
        self._loads = 0  # under way
        self._moved_s = 0.0  # the last sign of progress of any of them, by the system's clock
        self._stopped_s = 0.0  # for how long the clock has stood still, up to then

    def now_s(self) -> float:
        """Seconds by this clock; never less than before."""
        with self._lock:
            return self._clock() - self._stopped_s - self._standing_s()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A load is under way until the block ends. Several may be, on different threads."""
        with self._lock:
            self._settle()
            self._loads += 1
        try:
            yield
        finally:
            with self._lock:
                self._settle()
                self._loads -= 1

    def progress(self) -> None:
        """A load moves."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        self._stopped_s += self._standing_s()
        self._moved_s = self._clock()

    def _standing_s(self) -> float:
        """Return for how much of the time since the last sign of progress the clock has stood still."""
        return min(self._clock() - self._moved_s, self._patience_s) if self._loads else 0.0
