"""A bound on the work under way, of recordings and live sessions together, in seconds of audio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asr_server.core.errors import Overloaded

# A guess at the speed before anything was measured: seconds of audio per second of work.
_FIRST_GUESS_SPEED = 10.0
# A recording counts as one of usual length until its own is known. Long ones do not make that longer: they are few, and
# must not keep short ones out.
_FIRST_GUESS_S = 10.0
_LONGEST_GUESS_S = 30.0


@dataclass(slots=True, eq=False)
class AdmissionTicket:
    """The share of the bound that one recording or live session holds.

    `known`: the recording's length is, else `seconds` is an estimate. A session sets what waits for an answer.
    """

    seconds: float
    known: bool = False


class Admission:
    """A bound on the seconds of audio that are accepted and not yet answered. Used from the event loop only."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._tickets: set[AdmissionTicket] = set()
        self._speed = _FIRST_GUESS_SPEED
        self._usual_s = _FIRST_GUESS_S
        self.answered_s = 0.0  # seconds of audio of all recordings so far that were transcribed to their end

    @property
    def held_s(self) -> float:
        """Seconds of audio under way."""
        return sum(ticket.seconds for ticket in self._tickets)

    @property
    def full(self) -> bool:
        """Whether a recording of usual length does not fit. Any one fits an empty server."""
        held_s = self.held_s
        return held_s > 0 and held_s + self._usual_s > self.limit_s

    def check(self) -> None:
        """Raise `Overloaded` when nothing more fits: asked before a body is read."""
        if self.full:
            raise self._refusal()

    @contextmanager
    def hold(self) -> Iterator[AdmissionTicket]:
        """Hold the usual length until the block ends, or raise `Overloaded`.

        To be called before anything is done for a recording: of many that arrive together, those that cannot be taken
        are refused at once, and not when the length of each is known.
        """
        self.check()
        ticket = AdmissionTicket(self._usual_s)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)

    @contextmanager
    def hold_live(self) -> Iterator[AdmissionTicket]:
        """A ticket for a live session until the block ends; or raise `Overloaded`."""
        self.check()
        ticket = AdmissionTicket(0.0, known=True)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)

    def measure(self, ticket: AdmissionTicket, seconds: float) -> None:
        """Set the length of the recording, as soon as it is known and whenever it changes.

        Raises `Overloaded` the first time if it does not fit beside the others; later never, since work that has begun
        is finished.
        """
        if not ticket.known:
            # Those whose length is not known yet will find out beside this one.
            known_s = sum(other.seconds for other in self._tickets if other.known)
            if known_s and known_s + seconds > self.limit_s:
                raise self._refusal()
            ticket.known = True
            self._usual_s += 0.2 * (min(seconds, _LONGEST_GUESS_S) - self._usual_s)
        ticket.seconds = seconds

    def observe(self, audio_s: float, took_s: float) -> None:
        """Learn from a finished request how fast work goes, for the hint in `Retry-After`."""
        self.answered_s += audio_s
        if took_s > 0 and audio_s > 0:
            self._speed += 0.2 * (audio_s / took_s - self._speed)

    def _refusal(self) -> Overloaded:
        wait_s = self.held_s / max(self._speed, 0.1) / 2
        return Overloaded("The server has all the work it can hold; try again later.", retry_after_s=round(wait_s))
