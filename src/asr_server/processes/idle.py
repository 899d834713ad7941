"""One idle clock for all child processes: one task ends each that was out of use for its idle timeout.

Models are not on it. Only the engine thread may touch them, between two of its steps, and it sleeps until the first of
them is due anyway (`schedule/thread.py`): an event loop would have to wait for it, and could not end a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from asr_server.core.idle import IdleTimer

_LEAST_S = 0.01  # between two rounds


class IdleOwner(Protocol):
    """Starts a process when it is needed. `idle` counts the time since its last use."""

    idle: IdleTimer

    async def close_idle(self) -> None:
        """End the process if there is one. Called when the timeout has passed."""


async def end_when_idle(owners: Sequence[IdleOwner], timeout_s: float) -> None:
    """End what is idle, for ever. `timeout_s` is the timeout of all owners; 0 is none."""
    while timeout_s:
        # One that is held now is idle in `timeout_s` at the earliest.
        waits_s = (wait_s for owner in owners if (wait_s := owner.idle.remaining_s) is not None)
        await asyncio.sleep(max(_LEAST_S, min(waits_s, default=timeout_s)))
        await end_expired(owners)


async def end_expired(owners: Sequence[IdleOwner]) -> None:
    """End what is idle now."""
    for owner in owners:
        if owner.idle.expired:
            await owner.close_idle()
            owner.idle.touch()  # asked again after another timeout: it may have had a reason to go on
