"""Time slices: how long a task keeps the event loop before the other tasks get their turn."""

from __future__ import annotations

import asyncio
import time

# A request takes several turns of the event loop, and in each of them every busy connection may use up a few slices.
SLICE_S = 0.0005


class TimeSlice:
    """For a loop whose `await`s return at once while there is more to do: it awaits `next_round` in each round."""

    def __init__(self) -> None:
        self._ends_s = 0.0

    async def next_round(self) -> None:
        """Let the other tasks run if the slice has ended."""
        if time.monotonic() >= self._ends_s:
            await asyncio.sleep(0)
            self._ends_s = time.monotonic() + SLICE_S
