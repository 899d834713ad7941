"""How many requests one caller may have at once and a minute. `admission` has the bound of the whole server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from asr_server.core.errors import Overloaded

_MINUTE_S = 60.0
# So many callers are remembered; beyond that the one is forgotten that was away longest and has no work under way.
_MAX_CALLERS = 10_000


@dataclass(slots=True, eq=False)
class _CallerUsage:
    under_way: int = 0
    # The token bucket as one number: when it will be full again. It holds a minute's worth of requests.
    full_at_s: float = -math.inf


class Quota:
    """Counts by the caller's name. 0 is no limit. Used from the event loop only."""

    def __init__(self, at_once: int, per_minute: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._interval_s = _MINUTE_S / per_minute if per_minute else 0.0
        self._now_s = now_s
        self._usage: dict[str, _CallerUsage] = {}

    def __len__(self) -> int:
        return len(self._usage)

    @contextmanager
    def taken(self, caller: str) -> Iterator[None]:
        """A place for one request, until the block ends. Raises `Overloaded`; what is refused costs nothing."""
        if not self._at_once and not self._interval_s:
            yield
            return
        usage = self._usage_of(caller)
        if self._at_once and usage.under_way >= self._at_once:
            raise Overloaded(f"This caller has {self._at_once} requests and sessions under way, and may have no more.")
        self._spend(usage)
        usage.under_way += 1
        try:
            yield
        finally:
            usage.under_way -= 1

    def _spend(self, usage: _CallerUsage) -> None:
        now_s = self._now_s()
        full_at_s = max(usage.full_at_s, now_s) + self._interval_s
        wait_s = full_at_s - now_s - _MINUTE_S
        # Not 0: intervals that are no round number add up to a little more than a minute.
        if wait_s > self._interval_s / 1000:
            raise Overloaded("This caller has made all its requests of this minute.", retry_after_s=math.ceil(wait_s))
        usage.full_at_s = full_at_s

    def _usage_of(self, caller: str) -> _CallerUsage:
        """That of the caller, who is now the last to be forgotten."""
        found = self._usage.pop(caller) if caller in self._usage else _CallerUsage()
        self._usage[caller] = found
        if len(self._usage) > _MAX_CALLERS:
            idle = next((name for name, other in self._usage.items() if not other.under_way), caller)
            if idle != caller:
                del self._usage[idle]
        return found
