"""The inbox of a live session, a bound on the bytes of all sessions, and when audio arrived."""

import asyncio

import pytest

from asr_server.core.errors import Overloaded
from asr_server.live import inbox as inbox_module
from asr_server.live.inbox import QUEUE_BYTES, RESERVED_BYTES, ArrivalTimes, Inbox, SharedBytes
from asr_server.live.machine.events import Audio, Flush


async def test_others_get_their_turn_while_many_events_wait():
    """Also where the task has to wait for none of them."""
    inbox, taken, most = Inbox(SharedBytes()), 0, 0
    for _ in range(12_000):
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


@pytest.mark.parametrize("sizes", [[10], [10, 20, 30], [10, 40_000, 5, 5]])
async def test_what_is_held_is_nothing_when_all_was_taken(sizes):
    """Small pieces of audio are joined, and are as large together as they were apart."""
    inbox, taken = Inbox(SharedBytes()), b""
    audio = [bytes([number]) * size for number, size in enumerate(sizes)]
    for pcm in audio:
        inbox.put(Audio(pcm))
    assert inbox.size_bytes >= sum(sizes)
    while inbox:
        taken += (await inbox.first()).event.pcm
        inbox.remove_first()
    assert (taken, inbox.size_bytes) == (b"".join(audio), 0)


MIB = 1024 * 1024


def _fill(memory, queues, step_bytes=64 * 1024):
    """Every queue takes what it may, in turn; returns what each holds."""
    held, grew = [0] * queues, True
    while grew:
        grew = False
        for queue in range(queues):
            if held[queue] + step_bytes <= memory.queue_bytes:
                held[queue] += step_bytes
                memory.hold(queue, held[queue])
                grew = True
    return held


@pytest.mark.parametrize("queues", [1, 2, 7, 31])
def test_greedy_queues_share_alike_and_leave_as_much_for_the_next(queues):
    """Each queue gets what it leaves free: with n queues, one part of n + 1."""
    memory = SharedBytes(64 * MIB)
    held = _fill(memory, queues)
    fair = min(QUEUE_BYTES, 64 * MIB / (queues + 1))
    assert all(0.9 * fair <= size <= 1.1 * fair for size in held)
    assert memory.held_bytes == sum(held)


def test_a_speaker_always_has_room():
    """However much others hold: what is reserved may be held."""
    memory = SharedBytes(64 * MIB)
    memory.hold("a", 100 * MIB)
    assert memory.queue_bytes == RESERVED_BYTES


def test_what_a_queue_gives_back_is_free_again():
    """A queue that ends holds nothing."""
    memory = SharedBytes(64 * MIB)
    memory.hold("a", 60 * MIB)
    assert memory.queue_bytes == 4 * MIB
    memory.hold("a", 0)
    assert memory.queue_bytes == QUEUE_BYTES


def test_large_frames_in_hand_count_and_one_that_does_not_fit_is_refused():
    """Whoever sends small frames is never refused."""
    memory = SharedBytes(64 * MIB)
    with memory.in_hand(40 * MIB):
        with pytest.raises(Overloaded) as refused, memory.in_hand(30 * MIB):
            pass
        assert 1 <= refused.value.retry_after_s <= 60
        with memory.in_hand(24 * MIB), memory.in_hand(RESERVED_BYTES):
            pass
    assert memory.held_bytes == 0


def test_a_lag_is_the_time_since_the_last_sample_arrived(monkeypatch):
    """The piece with that sample counts, also if it is the piece's last one.

    What a flush takes out of a frame came with the last piece.
    """
    monkeypatch.setattr(inbox_module.time, "monotonic", lambda: 1_000.0)
    times = ArrivalTimes()
    assert times.lag_ms(1) == 0
    for end_samples, time_s in ((100, 999.0), (200, 999.5), (300, 1_000.5)):
        times.add(end_samples, time_s)
    assert [times.lag_ms(end) for end in (1, 100, 101, 200)] == [1_000, 1_000, 500, 500]
    assert times.lag_ms(300) == 0
    monkeypatch.setattr(inbox_module.time, "monotonic", lambda: 1_001.0)
    assert [times.lag_ms(end) for end in (300, 301)] == [500, 500]
