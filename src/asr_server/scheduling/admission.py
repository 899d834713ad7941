"""Refuses work at the door, counted in seconds of audio. Not a queue: what is admitted has its place already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asr_server.core.errors import Overloaded

# A guess at the speed before anything was measured: seconds of audio per second of work.
_FIRST_GUESS_SPEED = 10.0


@dataclass(slots=True, eq=False)
class Hold:
    """What one recording holds of the bound. Its holder corrects `seconds` when the length becomes known: more is
    never refused, since what is under way is not thrown away."""

    seconds: float


class Admission:
    """A bound on the seconds of audio that are accepted and not yet answered. Used from the event loop only."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._holds: set[Hold] = set()
        self._speed = _FIRST_GUESS_SPEED
        self.answered_s = 0.0  # seconds of audio of all recordings so far that were transcribed to their end

    @property
    def held_s(self) -> float:
        """Seconds of audio under way."""
        return sum(hold.seconds for hold in self._holds)

    def check(self) -> None:
        """Raise `Overloaded` when nothing more fits: asked before a body is read."""
        if self.held_s >= self.limit_s:
            raise self._refusal()

    @contextmanager
    def hold(self, seconds: float) -> Iterator[Hold]:
        """Hold `seconds` of the bound, or raise `Overloaded`. A single recording always fits an empty server."""
        if self._holds and self.held_s + seconds > self.limit_s:
            raise self._refusal()
        hold = Hold(seconds)
        self._holds.add(hold)
        try:
            yield hold
        finally:
            self._holds.remove(hold)

    def observe(self, audio_s: float, took_s: float) -> None:
        """Learn from a finished request how fast work goes, for the hint in `Retry-After`."""
        self.answered_s += audio_s
        if took_s > 0 and audio_s > 0:
            self._speed += 0.2 * (audio_s / took_s - self._speed)

    def _refusal(self) -> Overloaded:
        wait_s = self.held_s / max(self._speed, 0.1) / 2
        return Overloaded("The server has all the work it can hold; try again later.", retry_after_s=round(wait_s))
