"""The inbox of a live session, taken from by the session's task."""

import asyncio

from asr_server.live.inbox import Inbox
from asr_server.live.machine.events import Audio, Flush
from asr_server.net.shared_bytes import SharedBytes


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


async def test_few_actions_wait_and_audio_all_the_same():
    """The next action comes when one was processed."""
    inbox, put = Inbox(SharedBytes()), 0

    async def fill():
        nonlocal put
        while True:
            await inbox.wait_for_room(Flush())
            inbox.put(Flush())
            put += 1

    filling = asyncio.create_task(fill())
    await asyncio.sleep(0.01)
    assert 1 <= put < 100
    full = put
    await asyncio.wait_for(inbox.wait_for_room(Audio(bytes(320))), 1)
    inbox.put(Audio(bytes(320)))
    await inbox.first()
    inbox.remove_first()
    await asyncio.sleep(0.01)
    assert put == full + 1
    filling.cancel()
