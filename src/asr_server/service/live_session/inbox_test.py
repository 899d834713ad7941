"""The inbox of a live session, taken from by the session's task."""

import asyncio

from asr_server.live.events import Flush
from asr_server.scheduling.shared_bytes import SharedBytes
from asr_server.service.live_session.inbox import Inbox


async def test_others_get_their_turn_while_many_events_wait():
    """Also where the task has to wait for none of them."""
    inbox, taken, most = Inbox(SharedBytes()), 0, 0
    for _ in range(20_000):
        inbox.put(Flush())

    async def take():
        nonlocal taken
        while inbox:
            await inbox.first()
            inbox.remove_first()
            taken += 1

    task = asyncio.create_task(take())
    while not task.done():
        before = taken
        await asyncio.sleep(0)
        most = max(most, taken - before)
    assert 0 < most < 10_000
