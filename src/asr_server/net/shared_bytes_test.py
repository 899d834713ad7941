"""A bound on the bytes of many queues."""

import pytest

from asr_server.core.errors import Overloaded
from asr_server.net.shared_bytes import QUEUE_BYTES, RESERVED_BYTES, SharedBytes

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
