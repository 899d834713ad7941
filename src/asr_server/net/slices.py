"""Turns, by which connections that send as fast as they can share the event loop with each other and with the rest.

Whoever has more to do than fits into a slice waits for a turn. Turns are taken in order, and in each round of the event
loop only as many as take `_ROUND_S` together. So a round takes no longer for many such connections than for one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary

SLICE_S = 0.0005
# A request takes several rounds of the event loop.
_ROUND_S = 0.001
# A task that has not used the event loop for this long need not wait.
_RESTED_S = 0.05


class Turns:
    """The callbacks that wait for a turn of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()

    @property
    def are_awaited(self) -> bool:
        """True if anybody waits. A task that has not begun yet then has to wait too."""
        return bool(self._waiting)

    def soon(self, callback: Callable[[], None], cost_s: float = 0.0) -> None:
        """Call the callback in a later round. `cost_s`: its time beyond the call itself, which is measured."""
        self._waiting.append((cost_s, callback))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    async def next(self, cost_s: float = SLICE_S) -> None:
        """Return when it is the caller's turn. `cost_s`: how long it then keeps the event loop."""
        turn = asyncio.get_running_loop().create_future()
        self.soon(lambda: None if turn.done() else turn.set_result(None), cost_s)
        await turn

    def _run(self) -> None:
        ends_s = time.monotonic() + _ROUND_S
        left = len(self._waiting)  # callbacks that are added meanwhile wait for the next round
        try:
            while left and time.monotonic() < ends_s:
                # Removed after the call, so that `soon`, called meanwhile, does not find the queue empty.
                cost_s, callback = self._waiting[0]
                left, ends_s = left - 1, ends_s - cost_s
                try:
                    callback()
                finally:
                    self._waiting.popleft()
        finally:
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._run)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """Return the turns of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = Turns()
    return _of_loops[loop]


class TimeSlice:
    """Limits a loop whose `await`s return at once while there is more to do: it awaits `next_round` in each round."""

    def __init__(self) -> None:
        self._ends_s = 0.0

    async def next_round(self) -> None:
        """Wait for a turn if the slice has ended."""
        now_s = time.monotonic()
        if now_s >= self._ends_s:
            if now_s < self._ends_s + _RESTED_S:
                await turns().next()
            self._ends_s = time.monotonic() + SLICE_S
