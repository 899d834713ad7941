"""Owners on one idle clock, which the test moves."""

import asyncio

from asr_server.core.idle import IdleTimer
from asr_server.processes.idle import end_expired, end_when_idle


class Owner:
    def __init__(self, timeout_s, clock):
        self.idle = IdleTimer(timeout_s, clock)
        self.ended = 0

    async def close_idle(self):
        self.ended += 1


async def test_each_is_ended_after_its_own_last_use():
    """One in use is let be. One that goes on, since it has work that only it knows of, is asked again much later."""
    now_s = [0.0]
    first, second = owners = [Owner(10.0, lambda: now_s[0]) for _ in range(2)]
    second.idle.hold()
    for now_s[0] in (9.0, 10.0, 19.0):
        await end_expired(owners)
    assert (first.ended, second.ended) == (1, 0)
    second.idle.release()
    now_s[0] = 29.0
    await end_expired(owners)
    assert (first.ended, second.ended) == (2, 1)


async def test_what_is_released_is_ended_in_time_without_another_use():
    """Also if all owners were in use when the task looked."""
    owner = Owner(0.05, asyncio.get_running_loop().time)
    owner.idle.hold()
    task = asyncio.create_task(end_when_idle([owner], 0.05))
    await asyncio.sleep(0.12)
    assert not owner.ended
    owner.idle.release()
    async with asyncio.timeout(10):
        while not owner.ended:  # noqa: ASYNC110 - nothing is set
            await asyncio.sleep(0.005)
    task.cancel()


async def test_without_a_timeout_nothing_waits():
    async with asyncio.timeout(10):
        await end_when_idle([Owner(0.0, asyncio.get_running_loop().time)], 0.0)
