"""The times at which the audio of a live session arrives, and the pace at which its client sends."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from asr_server.core.audio import s_to_ms

_ARRIVALS_KEPT = 8_192
# Whoever has sent so much more audio than time has passed is not speaking, but sending a recording.
_AHEAD_S = 10.0
_MOVED_S = 10.0  # of audio that a client may record while it moves to another server


@dataclass(frozen=True, slots=True)
class SendingPace:
    """The pace at which the client of one session sends."""

    bytes_per_s: int
    began_s: float  # when the speaker of its first byte began, by the machine's monotonic clock

    def is_spoken(self, sent_bytes: int) -> bool:
        return sent_bytes / self.bytes_per_s - (time.monotonic() - self.began_s) <= _AHEAD_S


def began_before_moving_s(max_utterance_s: float) -> float:
    """Return when a session began that goes on from another server: its client sends an utterance and more again."""
    return time.monotonic() - _MOVED_S - max_utterance_s


@dataclass(slots=True)
class ArrivalTimes:
    """The times at which the latest audio of one session arrived."""

    ends_samples: deque[int] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_ARRIVALS_KEPT))

    def add(self, end_samples: int, time_s: float) -> None:
        """The audio up to `end_samples` arrived at this time of the monotonic clock."""
        self.ends_samples.append(end_samples)
        self.times_s.append(time_s)

    def lag_ms(self, end_samples: int) -> int:
        """Milliseconds since the sample before `end_samples` arrived: with the last piece if no frame had it then."""
        if not self.times_s:
            return 0
        place = min(bisect_left(self.ends_samples, end_samples), len(self.times_s) - 1)
        return max(0, s_to_ms(time.monotonic() - self.times_s[place]))
