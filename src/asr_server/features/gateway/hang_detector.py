"""Decides from the results of probes when a worker has hung. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class ProbeResult(Enum):
    """The result of one probe of the worker."""

    HEALTHY = auto()  # it answers, its engine makes progress, its model is loaded
    LOADING = auto()  # it answers; its model is being loaded, or may be at any moment
    HUNG = auto()  # it says that its engine makes no progress
    SILENT = auto()  # it does not answer
    STOPPED = auto()  # a signal has stopped its process, which loads nothing


@dataclass(frozen=True, slots=True)
class HangConfig:
    """Time limits."""

    hang_s: float  # for a worker that reports that it hangs, is silent, or is stopped
    # For a worker that is silent while it may be loading its model: importing the model's libraries can block the
    # whole process, on a slow disk for long.
    load_s: float  # the limit instead of `hang_s`
    probe_s: float  # the longest time that a probe and the pause before it can take


class HangDetector:
    """Judges one worker.

    The time between two probes counts for at most `probe_s`: if more has passed, this process itself was suspended,
    which says nothing about the worker.
    """

    def __init__(self, config: HangConfig, now_s: float) -> None:
        self._config = config
        self._last_probe_s = now_s
        self._stalled_s = self._stopped_s = 0.0
        self._may_be_loading = True

    def observe(self, probe: ProbeResult, now_s: float) -> bool:
        """Take the result of a probe. Returns True if the worker has hung."""
        since_s = min(now_s - self._last_probe_s, self._config.probe_s)
        self._last_probe_s = now_s
        if probe is ProbeResult.STOPPED:
            self._stopped_s += since_s
            return self._stopped_s >= self._config.hang_s
        self._stopped_s = 0.0
        if probe in (ProbeResult.HEALTHY, ProbeResult.LOADING):
            self._stalled_s, self._may_be_loading = 0.0, probe is ProbeResult.LOADING
            return False
        self._stalled_s += since_s
        loading = probe is ProbeResult.SILENT and self._may_be_loading
        return self._stalled_s >= (self._config.load_s if loading else self._config.hang_s)
