"""The inbox of a live session, a bound on the bytes of all sessions, and when audio arrived."""

import asyncio

import pytest

from asr_server.core.errors import Overloaded
from asr_server.live import inbox as inbox_module
from asr_server.live.inbox import QUEUE_BYTES, RESERVED_BYTES, ArrivalTimes, Inbox, SharedBytes
from asr_server.live.machine.events import Audio, Flush


async def test_the_number_of_actions_that_wait_is_the_documented_one():
    """docs/run/security.md: 16. The next one comes when one was processed; audio between them does not count."""
    inbox = Inbox(SharedBytes())
    for _ in range(16):
        async with asyncio.timeout(1):
            await inbox.wait_for_room(Flush())
        inbox.put(Flush())
        inbox.put(Audio(b"ab"))
    waiting = asyncio.create_task(inbox.wait_for_room(Flush()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    inbox.remove_first()
    await asyncio.wait_for(waiting, 1)


async def test_what_is_held_is_nothing_when_all_was_taken():
    """Small pieces of audio are joined, and are as large together as they were apart."""
    inbox, taken, audio = Inbox(SharedBytes()), b"", [b"\0" * 10, b"\1" * 40_000, b"\2" * 5, b"\3" * 5]
    for pcm in audio:
        inbox.put(Audio(pcm))
    assert inbox.size_bytes >= 40_020
    while inbox:
        taken += (await inbox.first()).event.pcm
        inbox.remove_first()
    assert (taken, inbox.size_bytes) == (b"".join(audio), 0)


MIB = 1024 * 1024


@pytest.mark.parametrize("queues", [1, 31])
def test_greedy_queues_share_alike_and_leave_as_much_for_the_next(queues):
    """With n queues, each gets one part of n + 1. What is given back is free again."""
    memory, held = SharedBytes(64 * MIB), [0] * queues
    for queue in [*range(queues)] * 512:  # each takes what it may, in turn
        if held[queue] + MIB // 16 <= memory.queue_bytes:
            held[queue] += MIB // 16
            memory.hold(queue, held[queue])
    fair = min(QUEUE_BYTES, 64 * MIB / (queues + 1))
    assert all(0.9 * fair <= size <= 1.1 * fair for size in held)
    assert memory.held_bytes == sum(held)
    for queue in range(queues):
        memory.hold(queue, 0)
    assert (memory.held_bytes, memory.queue_bytes) == (0, QUEUE_BYTES)


def test_large_frames_in_hand_count_and_one_that_does_not_fit_is_refused():
    """Whoever sends small frames is never refused, and has room."""
    memory = SharedBytes(64 * MIB)
    with memory.in_hand(40 * MIB):
        with pytest.raises(Overloaded) as refused, memory.in_hand(30 * MIB):
            pass
        assert 1 <= refused.value.retry_after_s <= 60
        with memory.in_hand(24 * MIB), memory.in_hand(RESERVED_BYTES):
            assert memory.queue_bytes == RESERVED_BYTES
    assert memory.held_bytes == 0


def test_a_lag_is_the_time_since_the_last_sample_arrived(monkeypatch):
    """The piece with that sample counts. What a flush takes out of a frame came with the last piece."""
    monkeypatch.setattr(inbox_module.time, "monotonic", lambda: 1_000.0)
    times = ArrivalTimes()
    assert times.lag_ms(1) == 0
    for end_samples, time_s in ((100, 999.0), (200, 999.5), (300, 999.75)):
        times.add(end_samples, time_s)
    assert [times.lag_ms(end) for end in (1, 100, 101, 200, 300, 301)] == [1_000, 1_000, 500, 500, 250, 250]
