"""Limits on the requests that one caller may have at once and a minute, and on the live sessions of all callers.

`admission` has the bound of the server's work.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from asr_server.core.errors import Overloaded

_MINUTE_S = 60.0
# This many callers are remembered; beyond that the one is forgotten that was away longest and has no work under way.
MAX_CALLERS = 10_000
# Connections that share the place of one live session: a client comes back before its broken connections are noticed.
_MAX_CONNECTIONS = 4
_LIVE_RETRY_S = 5  # sessions take minutes; some end at any time


@dataclass(slots=True, eq=False)
class Place:
    """A request's part of its caller's limit, or a live session's over all of its connections.

    A session that waits for its client keeps its place, as the only holder.
    """

    live: bool  # it is a session's
    usage: _CallerUsage  # the caller's
    quota: Quota
    evict: Callable[[], None] | None = None  # ends the session and so frees the place; None where nothing can end it
    holders: int = 0  # requests or connections that share the place

    @contextmanager
    def held(self) -> Iterator[Place]:
        """Hold it until the block ends; the last holder frees it."""
        if not self.holders:
            self.quota.live += self.live
        self.holders += 1
        self.usage.places[self] = None
        try:
            yield self
        finally:
            self.holders -= 1
            self.usage.places.move_to_end(self)
            if not self.holders:
                self.quota.live -= self.live
                del self.usage.places[self]

    @contextmanager
    def kept(self, session: str, evict: Callable[[], None]) -> Iterator[None]:
        """Hold it for the session of this id, which its connections join."""
        self.evict = evict
        self.usage.sessions[session] = self
        try:
            with self.held():
                yield
        finally:
            self.evict = None
            del self.usage.sessions[session]


@dataclass(slots=True, eq=False)
class _CallerUsage:
    # The token bucket as one number: when it will be full again. It holds a minute's worth of requests.
    full_at_s: float = -math.inf
    places: OrderedDict[Place, None] = field(default_factory=OrderedDict)  # last: what a connection has left last
    sessions: dict[str, Place] = field(default_factory=dict)  # by id


class Quota:
    """Counts by the caller's name. 0 is no limit. Used from the event loop only.

    `at_once`: requests and live sessions of one caller; `per_minute`: its requests; `max_live`: sessions of all.
    """

    def __init__(
        self, at_once: int, per_minute: int, now_s: Callable[[], float] = time.monotonic, *, max_live: int = 0
    ) -> None:
        self._at_once, self._max_live = at_once, max_live
        self._interval_s = _MINUTE_S / per_minute if per_minute else 0.0
        self._now_s = now_s
        self._usage: dict[str, _CallerUsage] = {}
        self.live = 0  # places of live sessions, of all callers

    @contextmanager
    def taken(self, caller: str, *, live: bool = False, resumes: str = "") -> Iterator[Place]:
        """A place for one request, until the block ends; for a session of the caller's that it resumes, that one's.

        Where no place is free, the caller's own session is evicted that has been without a connection for longest.
        Raises `Overloaded`; what is refused costs nothing.
        """
        usage = self._usage_of(caller)
        full_at_s = self._full_at_s(usage)
        place = usage.sessions.get(resumes)
        if place is None or place.holders > _MAX_CONNECTIONS:
            if refusal := self._refusal(usage, live=live):
                evict = next((other.evict for other in usage.places if other.holders == 1 and other.evict), None)
                if evict is None:
                    raise refusal
                evict()
            place = Place(live, usage, self)
        usage.full_at_s = full_at_s  # only now, as what is refused costs nothing
        with place.held():
            yield place

    def _refusal(self, usage: _CallerUsage, *, live: bool) -> Overloaded | None:
        if self._at_once and len(usage.places) >= self._at_once:
            return Overloaded(f"This caller has {self._at_once} requests and sessions under way, and may have no more.")
        # One caller gets another session only while more are free than it has: a single caller can take half of them.
        own = sum(place.live for place in usage.places)
        if live and self._max_live and own >= self._max_live - self.live:
            return Overloaded(
                "The server has all the live sessions that it can give this caller; try again later.",
                retry_after_s=_LIVE_RETRY_S,
            )
        return None

    def _full_at_s(self, usage: _CallerUsage) -> float:
        """Return when the bucket is full again after one more request. Raises `Overloaded`."""
        now_s = self._now_s()
        full_at_s = max(usage.full_at_s, now_s) + self._interval_s
        wait_s = full_at_s - now_s - _MINUTE_S
        # Not 0: intervals that are no round number add up to a little more than a minute.
        if wait_s > self._interval_s / 1000:
            raise Overloaded("This caller has made all its requests of this minute.", retry_after_s=math.ceil(wait_s))
        return full_at_s

    def _usage_of(self, caller: str) -> _CallerUsage:
        """Return the usage of the caller, who is now the last to be forgotten."""
        found = self._usage.pop(caller) if caller in self._usage else _CallerUsage()
        self._usage[caller] = found
        if len(self._usage) > MAX_CALLERS:
            # Those with places stay: a place changes the usage that it was taken from.
            idle = next((name for name, other in self._usage.items() if not other.places), caller)
            if idle != caller:
                del self._usage[idle]
        return found
