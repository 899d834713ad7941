"""Whether a live client sends audio as fast as it is spoken, or faster, as from a file."""

from __future__ import annotations

import time
from dataclasses import dataclass

# Whoever has sent so much more audio than time has passed is not speaking, but sending a recording.
_AHEAD_S = 10.0
_MOVED_S = 10.0  # of audio that a client may record while it moves to another server


@dataclass(frozen=True, slots=True)
class SendingPace:
    """Of one session. `began_s`: when the speaker of its first byte began, by the machine's monotonic clock."""

    bytes_per_s: int
    began_s: float

    def is_spoken(self, sent_bytes: int) -> bool:
        """Whether so many bytes may come from somebody who speaks."""
        return sent_bytes / self.bytes_per_s - (time.monotonic() - self.began_s) <= _AHEAD_S


def began_before_moving_s(max_utterance_s: float) -> float:
    """When a session began that goes on from another server: its client has an utterance and more to send again."""
    return time.monotonic() - _MOVED_S - max_utterance_s
