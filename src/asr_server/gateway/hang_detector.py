"""When a running worker that does not move is taken for dead. Pure: it is told what was seen, and ends nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class ProbeResult(Enum):
    """What a look at the worker showed."""

    WELL = auto()  # it answers, its engine moves, its model is there
    LOADING = auto()  # it answers; its model is being loaded, or may be at any moment
    HUNG = auto()  # it says that its engine does not move
    SILENT = auto()  # it does not answer


@dataclass(frozen=True, slots=True)
class HangConfig:
    """Patience in seconds: with one that hangs or is silent; with one that may be silent because it loads.

    A load says that it is one, and is never a hang. But importing the model's libraries can hold all of a process up,
    on a slow disk for long. `look_s`: the longest time that one look and the pause before it can take.
    """

    hang_s: float
    load_s: float
    look_s: float


class HangDetector:
    """Over one worker. It counts the time between looks, no longer than looks take: when this process itself was
    stopped for a while, that says nothing of the worker."""

    def __init__(self, rules: HangConfig, now_s: float) -> None:
        self._rules = rules
        self._seen_s = now_s
        self._still_s = 0.0
        self._may_load = True

    def sees(self, sign: ProbeResult, now_s: float) -> bool:
        """One look. Returns whether the worker is to be ended."""
        since_s = min(now_s - self._seen_s, self._rules.look_s)
        self._seen_s = now_s
        if sign in (ProbeResult.WELL, ProbeResult.LOADING):
            self._still_s, self._may_load = 0.0, sign is ProbeResult.LOADING
            return False
        self._still_s += since_s
        patient = sign is ProbeResult.SILENT and self._may_load
        return self._still_s >= (self._rules.load_s if patient else self._rules.hang_s)
