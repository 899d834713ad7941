"""How turns of the event loop are given."""

import asyncio
import time

from asr_server.net import slices as module
from asr_server.net.slices import SLICE_S, TimeSlice, turns


async def test_a_round_has_few_turns_however_many_wait():
    """Each says what it takes; those that do not fit into the round come in the next ones."""
    waiting = asyncio.gather(*(turns().next(module._ROUND_S) for _ in range(50)))
    rounds = 0
    while not waiting.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 50


async def test_the_time_of_callbacks_is_measured():
    """So is that of a callback that says nothing."""
    done = []

    def work():
        time.sleep(module._ROUND_S)
        done.append(time.monotonic())

    for _ in range(10):
        turns().soon(work)
    counts = []
    while len(done) < 10:
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    assert max(counts) == 1
    assert not turns().are_awaited


async def test_turns_are_in_order_and_whoever_comes_back_is_last():
    """Nobody gets two turns before all others have had one."""
    order = []

    def again(name, left):
        order.append(name)
        if left:
            turns().soon(lambda: again(name, left - 1))

    for name in "abc":
        turns().soon(lambda name=name: again(name, 2))
    for _ in range(100):
        await asyncio.sleep(0)
    assert "".join(order) == "abcabcabc"


async def test_a_turn_that_fails_takes_nobody_elses():
    """Its error is reported to the event loop's handler."""
    errors, done = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    turns().soon(lambda: 1 / 0)
    turns().soon(done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_cancelled_wait_takes_no_turn():
    """Its place in the queue passes, and the others have theirs."""
    task = asyncio.create_task(turns().next())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(turns().next(), 10)
    assert task.cancelled()


async def test_a_busy_task_waits_for_turns_and_a_rested_one_does_not(monkeypatch):
    """A slice is used up by time, however many rounds it has."""
    now_s = 1_000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    time_slice, has_waited = TimeSlice(), []
    await time_slice.next_round()
    for passed_s in (SLICE_S / 3, SLICE_S / 3, 2 * SLICE_S, SLICE_S / 2, 2 * module._RESTED_S):
        now_s += passed_s
        others = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await time_slice.next_round()
        has_waited.append(bool(others))
    assert has_waited == [False, False, True, False, False]
