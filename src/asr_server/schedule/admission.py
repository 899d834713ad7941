"""Decides which work to accept: as much as can be answered in time at the measured speed, within a bound on the seconds
of audio."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from asr_server.core.errors import Overloaded
from asr_server.schedule.job import RECORDINGS_SHARE

# Seconds of audio per second, before anything was measured: the speed of the 0.6B on two cores.
FIRST_GUESS_SPEED = 4.0
FIRST_GUESS_SPEED_GPU = 100.0  # the same for a GPU; an H100 does ten times that
# The first guess counts as much as this many seconds of measured work. Measurements older than `_MEMORY_S` fade.
_FIRST_GUESS_WEIGHT_S = 1.0
_MEMORY_S = 30.0
_SAMPLE_S = 0.2  # the least engine time of a measurement
# Up to this many seconds of audio (three spans) the time limit is ignored: the estimate says little about less audio.
_LEAST_S = 90.0
# Until its length is known, a recording counts as one of usual length. Long recordings raise the usual length only to
# `_LONGEST_GUESS_S`: they are few, and must not keep short ones out.
_FIRST_GUESS_S = 10.0
_LONGEST_GUESS_S = 30.0
_TURN_S = 80.0  # how much of a text may go before one of another caller has its turn: three sentences


@dataclass(slots=True, eq=False)
class AdmissionTicket:
    """The accepted audio of one recording or live session."""

    seconds: float  # of audio, an estimate until `known`; in a session, audio that waits for an answer
    time_limit_s: float  # in which it has to be answered
    bulk: bool = False  # other work goes before it
    live: bool = False  # it is a session
    known: bool = False  # `seconds` is not an estimate
    done_s: float = 0.0  # how much of `seconds` is answered
    share: str = ""  # the caller that it counts for, a key or an address; "" for none

    @property
    def left_s(self) -> float:
        return max(0.0, self.seconds - self.done_s)


@dataclass(eq=False, kw_only=True)
class Admission:
    """Bounds the seconds of audio that are accepted and not yet answered. Used from the event loop only.

    A recording is accepted if it and the work before it can be answered within its time limit, at the speed at which
    recordings were answered lately.
    """

    limit_s: float = field(kw_only=False)  # for all tickets together
    time_limit_s: float = math.inf  # for a recording without its own
    engine_s: Callable[[], float] = lambda: 0.0  # the time that the engine has spent with recordings so far
    speed: float = FIRST_GUESS_SPEED  # seconds of audio per second: a guess until it is measured
    share_s: float = math.inf  # for one key or address

    def __post_init__(self) -> None:
        self._tickets: set[AdmissionTicket] = set()
        self._usual_s, self._measured_s = _FIRST_GUESS_S, _FIRST_GUESS_WEIGHT_S
        self._sample_began_s, self._sample_audio_s = self.engine_s(), 0.0

    @property
    def held_s(self) -> float:
        return sum(ticket.left_s for ticket in self._tickets)

    @property
    def saturated(self) -> bool:
        return self._excess_s(AdmissionTicket(self._usual_s, math.inf), self._tickets) > 0

    def check(self, *, can_wait: bool = False) -> None:
        """Raise `Overloaded` if a recording of usual length does not fit. Called before a body is read.

        `can_wait`: for a job, or for a live session, which goes before recordings. Only `limit_s` counts for these.
        """
        self._check(AdmissionTicket(self._usual_s, math.inf if can_wait else self.time_limit_s))

    def hold(
        self, *, time_limit_s: float | None = None, bulk: bool = False, share: str = ""
    ) -> AbstractContextManager[AdmissionTicket]:
        """Hold the usual length until the block ends, or raise `Overloaded`. Of many recordings that arrive together,
        those that do not fit are refused at once, and not only when their lengths are known.
        """
        ticket = AdmissionTicket(self._usual_s, time_limit_s or self.time_limit_s, bulk, share=share)
        self._check(ticket)
        return self._held(ticket)

    def hold_live(self, share: str = "") -> AbstractContextManager[AdmissionTicket]:
        """Hold a ticket without audio for a live session until the block ends, or raise `Overloaded`."""
        self.check(can_wait=True)
        return self._held(AdmissionTicket(0.0, math.inf, live=True, known=True, share=share))

    @contextmanager
    def _held(self, ticket: AdmissionTicket) -> Iterator[AdmissionTicket]:
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            self._tickets.remove(ticket)

    def measure(self, ticket: AdmissionTicket, seconds: float, *, bulk: bool = False) -> None:
        """Set the length of the recording, as soon as it is known and whenever it changes.

        Raises `Overloaded` the first time if it does not fit with the others; work that has begun is finished.
        """
        ticket.seconds, ticket.bulk = seconds, ticket.bulk or bulk
        if not ticket.known:
            # Recordings whose length is not known yet are left out: they will be checked against this one.
            self._check(ticket, {other for other in self._tickets if other.known})
            ticket.known = True
            self._usual_s += 0.2 * (min(seconds, _LONGEST_GUESS_S) - self._usual_s)

    def check_more(self, ticket: AdmissionTicket | None, seconds: float, share: str) -> None:
        """Raise `Overloaded` if a session may not have that many more seconds in progress. `ticket`: its own, or None.

        A session always may if no other ticket is held.
        """
        held_s = ticket.left_s if ticket is not None else 0.0
        self._check(AdmissionTicket(held_s + seconds, math.inf, share=share), self._tickets - {ticket})

    def progress(self, ticket: AdmissionTicket, done_s: float) -> None:
        """Note that a recording is answered up to `done_s`. The speed is audio per engine time."""
        self._sample_audio_s += max(0.0, done_s - ticket.done_s)
        ticket.done_s = max(ticket.done_s, done_s)
        took_s = self.engine_s() - self._sample_began_s
        if took_s < _SAMPLE_S:
            return
        self.speed += (self._sample_audio_s / took_s - self.speed) * took_s / (took_s + self._measured_s)
        self._measured_s = min(_MEMORY_S, self._measured_s + took_s)
        self._sample_began_s, self._sample_audio_s = self.engine_s(), 0.0

    def _check(self, ticket: AdmissionTicket, others: Iterable[AdmissionTicket] | None = None) -> None:
        """Raise `Overloaded` unless the ticket fits in addition to `others`, by default all tickets that are held."""
        others = self._tickets if others is None else others
        own_s = sum(other.left_s for other in others if other.share == ticket.share)
        excess_s = own_s + ticket.left_s - self.share_s if ticket.share and own_s else 0.0
        reason = "You have all the work under way that one caller may have"
        if excess_s <= 0:
            excess_s, reason = self._excess_s(ticket, others), "The server has all the work it can do in time"
        if excess_s > 0:
            wait_s = max(1, math.ceil(excess_s / max(self.speed, 0.01)))
            raise Overloaded(f"{reason}; try again later.", retry_after_s=wait_s)

    def _excess_s(self, ticket: AdmissionTicket, others: Iterable[AdmissionTicket]) -> float:
        """Return the seconds of audio that have to be answered before a recording can be accepted; 0 if none."""
        held_s = sum(other.left_s for other in others)
        live_s = sum(other.left_s for other in others if other.live)
        # Bulk work gives way to the rest.
        before_s = sum(
            _before_s(ticket, other) for other in others if not other.live and (ticket.bulk or not other.bulk)
        )
        # Live work goes first, but recordings keep their share of the engine however much live work there is.
        before_s += min(live_s, (before_s + ticket.left_s) * (1 / RECORDINGS_SHARE - 1))
        over_limit_s = held_s + ticket.left_s - self.limit_s
        late_s = before_s + ticket.left_s - max(_LEAST_S, ticket.time_limit_s * self.speed)
        return max(0.0, min(held_s, over_limit_s), min(before_s, late_s))


def _before_s(ticket: AdmissionTicket, other: AdmissionTicket) -> float:
    """Return how many seconds of the other ticket's work are done before all of this ticket's work is done.

    If callers have shares, the work is texts, which take turns at the engine: a short text does not wait for all of
    another caller's long text.
    """
    if ticket.share and ticket.share != other.share:
        return min(other.left_s, ticket.left_s + _TURN_S)
    return other.left_s
