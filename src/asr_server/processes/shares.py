"""Something that callers share, in units: places to run in, or bytes of memory."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    caller: str
    units: int  # of the total
    granted: asyncio.Future[None]  # done when they are the caller's


class FairShares:
    """`total` units, of which callers that hold some already may fill only `shared`. For one event loop.

    The rest is for callers that hold none, so one caller alone cannot keep another waiting. Of those that wait, the
    caller that holds the least comes first, then whoever's last turn is longest ago, then whoever came first. A waiter
    whose units do not fit lets others pass.
    """

    def __init__(self, shared: int, total: int) -> None:
        self._shared, self._total = shared, total
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._turns: dict[str, int] = {}  # the number of each caller's last turn since somebody last waited
        self._numbers = itertools.count(1)

    @property
    def held(self) -> int:
        """Return the units of all callers."""
        return self._held.total()

    @asynccontextmanager
    async def taken(self, caller: str, units: int = 1) -> AsyncGenerator[None, None]:
        """Hold that many units until the block ends; waits until they are free. `units` is at most `total`."""
        waiter = _Waiter(caller, units, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._grant()
        try:
            await waiter.granted
            yield
        finally:
            if waiter in self._waiting:  # cancelled before its turn
                self._waiting.remove(waiter)
            else:
                self._held[caller] -= units
                self._held += Counter()  # forget who holds none
            self._grant()

    def _grant(self) -> None:
        """Give units to those whose turn it is."""
        while waiter := next(filter(self._fits, sorted(self._waiting, key=self._place)), None):
            self._waiting.remove(waiter)
            self._held[waiter.caller] += waiter.units
            self._turns[waiter.caller] = next(self._numbers)
            if not waiter.granted.done():  # it was cancelled this moment, and gives the units back when it runs
                waiter.granted.set_result(None)
        if not self._waiting:
            self._turns.clear()

    def _place(self, waiter: _Waiter) -> tuple[int, int]:
        return self._held[waiter.caller], self._turns.get(waiter.caller, 0)

    def _fits(self, waiter: _Waiter) -> bool:
        return not self.held or self.held + waiter.units <= (self._shared if self._held[waiter.caller] else self._total)
