"""When which audio of a live session arrived."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from asr_server.core.audio import s_to_ms

_ARRIVALS_KEPT = 8_192


@dataclass(slots=True)
class ArrivalTimes:
    """Of one session; the latest are kept."""

    ends_samples: deque[int] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    def add(self, end_samples: int, time_s: float) -> None:
        """The audio up to `end_samples` arrived at this time of the monotonic clock."""
        self.ends_samples.append(end_samples)
        self.times_s.append(time_s)

    def lag_ms(self, end_samples: int) -> int:
        """Milliseconds since the sample before `end_samples` arrived."""
        place = bisect_left(self.ends_samples, end_samples)
        if place >= len(self.times_s):
            return 0
        return max(0, s_to_ms(time.monotonic() - self.times_s[place]))
