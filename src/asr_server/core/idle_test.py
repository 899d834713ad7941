"""The idle timeout on a clock that the test moves, and the task that ends what is idle."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import AsyncMock

from asr_server.core.conftest import Clock
from asr_server.core.idle import IdleTimer, end_when_idle


def test_the_timeout_counts_from_the_last_use():
    """The timeout ends at its exact second, and a use restarts it. Without a timeout nothing expires."""
    clock = Clock(50.0)
    timer, endless = IdleTimer(10.0, clock), IdleTimer(0.0, clock)
    clock.now_s += 9.5
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (0.5, 9.5, False)
    clock.now_s += 0.5
    assert timer.expired
    timer.touch()
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (10.0, 0.0, False)
    assert (endless.remaining_s, endless.idle_s, endless.expired) == (None, 10.0, False)


def test_what_is_held_is_not_idle():
    """However long, and until the last of several has released it; the time counts from there."""
    clock = Clock(50.0)
    timer = IdleTimer(10.0, clock)
    timer.hold()
    timer.hold()
    clock.now_s += 100.0
    timer.release()
    clock.now_s += 100.0
    assert (timer.remaining_s, timer.idle_s, timer.expired) == (None, 0.0, False)
    timer.release()
    assert (timer.remaining_s, timer.expired) == (10.0, False)
    clock.now_s += 10.0
    assert timer.expired


async def test_what_is_released_is_ended_in_time_without_another_use():
    """This holds too if all owners were in use when the task looked."""
    ended = asyncio.Event()
    owner = SimpleNamespace(idle=IdleTimer(0.05), close_idle=AsyncMock(side_effect=ended.set))
    owner.idle.hold()
    task = asyncio.create_task(end_when_idle([owner], 0.05))
    await asyncio.sleep(0.12)
    assert not ended.is_set()
    owner.idle.release()
    await asyncio.wait_for(ended.wait(), 10)
    task.cancel()


# 64 MB in blocks too small to be mapped on their own, one of 64 kept: what is freed lies between what stays.
_HOLES = """
from pathlib import Path
from asr_server.core import idle

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

blocks = [bytes([1]) * 16_000 for _ in range(4_000)]
kept = blocks[::64]
before = idle.free_heap_bytes()
del blocks
print((idle.free_heap_bytes() - before) / 2**20)
before = resident_mb()
idle.trim_heap()
print(before - resident_mb())
"""


def test_pages_with_nothing_in_them_go_back():
    """Pages between pages that are in use go back too, which the library keeps by itself; it says how much that is."""
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    free_mb, given_back_mb = map(float, done.stdout.split())
    assert 55 < free_mb < 65
    assert given_back_mb > 40
