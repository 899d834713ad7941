"""Threads for callers: the place of each, and the end of their work."""

import asyncio
import gc
import sys
import threading
import weakref
from contextlib import suppress

from asr_server.core.conftest import until
from asr_server.processes.caller_work import current_caller, in_thread


def _endless(begun, running, ended):
    running.append(threading.get_ident())
    begun.set()
    try:
        while True:
            pass
    finally:
        ended.set()


async def _of(caller, work, *args):
    current_caller.set(caller)
    return await in_thread(work, *args)


class _Text(str):
    """A text with weak references."""


async def test_nothing_is_kept_of_a_text_that_was_refused():
    """A text may have 32 MB, and garbage is collected rarely."""
    text = _Text("word")
    kept = weakref.ref(text)
    gc.disable()
    try:
        with suppress(ValueError):  # `pytest.raises` would keep it
            await in_thread(int, text)
        del text
        await until(lambda: kept() is None)  # the thread may still be ending
    finally:
        gc.enable()


async def test_another_caller_need_not_wait_and_work_ends_with_its_caller():
    """Six endless loops of one caller, as a fault of a text function would make them."""
    begun, running, ended = threading.Event(), [], threading.Event()
    loops = [asyncio.create_task(_of("one", _endless, begun, running, ended)) for _ in range(6)]
    await asyncio.to_thread(begun.wait)
    assert await asyncio.create_task(_of("other", len, "word")) == 4
    assert len(running) == 1
    for loop in loops:
        loop.cancel()
    await asyncio.wait(loops)
    await asyncio.to_thread(ended.wait)
    assert await asyncio.create_task(_of("one", len, "word")) == 4


async def test_work_ends_although_the_first_exception_was_lost():
    """As in a callback of the garbage collector, which lets none out."""
    begun, ended = threading.Event(), threading.Event()

    def work():
        with suppress(BaseException):
            _endless(begun, [], threading.Event())
        _endless(begun, [], ended)

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.wait([task])
    assert await asyncio.to_thread(ended.wait, 60)


async def test_work_that_is_cancelled_before_it_begins_ends_in_silence(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    for _ in range(300):
        work = asyncio.create_task(in_thread(len, "word"))
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait([work])
    assert seen == []
