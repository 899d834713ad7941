"""Threads for callers: the place of each, and the end of their work."""

import asyncio
import threading

import pytest

from asr_server.processes.caller_work import in_thread, work_for


def _endless(begun):
    begun.set()
    while True:
        pass


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "caller"]


async def _of(caller, work, *args):
    work_for(caller)
    return await in_thread(work, *args)


async def test_results_and_errors_come_back():
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


async def test_another_caller_need_not_wait_and_work_ends_with_its_caller():
    """Six endless loops of one caller, as a fault of a text function would make them."""
    begun = threading.Event()
    loops = [asyncio.create_task(_of("one", _endless, begun)) for _ in range(6)]
    await asyncio.to_thread(begun.wait)
    assert await asyncio.create_task(_of("other", len, "word")) == 4
    assert len(_threads()) <= 2  # the other caller's thread may still be ending
    for loop in loops:
        loop.cancel()
    await asyncio.wait(loops)
    for thread in _threads():
        await asyncio.to_thread(thread.join)
    assert await asyncio.create_task(_of("one", len, "word")) == 4
