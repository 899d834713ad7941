"""How the time of the event loop is counted by caller, with a clock of the test's own."""

import asyncio
import time
from contextlib import suppress

import pytest

from asr_server.core.conftest import Clock
from asr_server.core.errors import Overloaded
from asr_server.net import loop_time as module
from asr_server.net.loop_time import OWED_S, SAVED_S, SHARE, ConnectionTime, LoopTime, loop_time, slice_queue


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def times(clock):
    return LoopTime(clock)


@pytest.fixture
def busy(times):
    """The bucket of one caller, while another one has a request under way."""
    with times.working(times.of("other")):
        yield times.of("busy")


@pytest.fixture
def connected(times, busy):
    """Returns another connection of the busy caller, who owes time."""

    def connect():
        made = ConnectionTime(times)
        made.caller = busy
        return made

    busy.take(60.0)
    return connect


def test_a_caller_waits_for_what_it_took_beyond_its_savings(busy, clock):
    """As long as its share takes to fill the bucket up to nothing. A single costly message costs a bounded time."""
    busy.take(SAVED_S)
    assert busy.wait_s() == 0
    busy.take(SHARE)
    assert busy.wait_s() == pytest.approx(1)
    clock.now_s += 0.75
    assert busy.wait_s() == pytest.approx(0.25)
    clock.now_s += 0.26
    assert busy.wait_s() == 0
    busy.take(60.0)
    assert busy.wait_s() == pytest.approx(OWED_S / SHARE)


def test_time_costs_nothing_while_nobody_else_has_work(times, clock):
    """Neither then nor later, when others come; a moment after their last request it costs nothing again."""
    alone = times.of("alone")
    with times.working(alone):  # its own requests and messages are not the work of others
        times.worked(alone)
        alone.take(60.0)
    with times.working(times.of("other")):
        assert alone.wait_s() == 0
        alone.take(60.0)
        assert alone.wait_s() > 0
    times.worked(alone)
    assert alone.wait_s() > 0
    clock.now_s += module.AT_WORK_S
    assert alone.wait_s() == 0


def test_audio_at_the_pace_of_speech_is_never_late(connected, busy, clock):
    """150 sessions with frames of 10 ms take nearly all that these pay for, though others of the caller owe time."""
    sessions = [connected() for _ in range(150)]
    for _ in range(100):
        clock.now_s += 0.01
        for session in sessions:
            session.pay(320)
            session.take(0.9 * (module.MESSAGE_S + 320 * module.BYTE_S))
            assert not session.is_over
    assert busy.wait_s() < OWED_S / SHARE  # nothing of it was taken from the caller's bucket


@pytest.mark.parametrize(("count", "size", "paid_s"), [(100, 320_000, module.PAID_S), (1_000, 1, 0.0)])
def test_audio_faster_than_speech_and_tiny_frames_do_not_pay(connected, clock, count, size, paid_s):
    """A recording that comes at a thousand times its speed pays for its pace, and a byte is no audio."""
    connection = connected()
    clock.now_s += 0.01
    for _ in range(count):
        connection.pay(size)
    connection.take(module.BEGIN_S + paid_s)
    assert connection.is_over


def test_an_idle_connection_can_still_answer_pings(connected, busy, clock):
    """Every few seconds, though its caller owes time."""
    idle = connected()
    idle.take(module.BEGIN_S)
    for _ in range(10):
        clock.now_s += 2.0
        busy.take(60.0)
        assert not idle.is_over
        idle.take(0.0003)


def test_few_callers_are_remembered(times, monkeypatch):
    """The callers that were asked for last are kept."""
    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    first, second = [times.of(name) for name in "abcad"][:2]
    assert (times.of("a") is first, times.of("b") is second) == (True, False)


async def test_who_is_alone_opens_sockets_at_any_rate():
    """The caller's own messages are not the work of others."""
    times = LoopTime()
    async with asyncio.timeout(5):
        for _ in range(1_000):
            times.worked(times.of("a"))
            await times.handshake("a")


async def test_handshakes_that_wait_have_a_limit(monkeypatch):
    """One more is refused, and told when to come back. When all have left, nothing is left to be done for them."""
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    times = LoopTime()
    with times.working(times.of("b")):
        times.of("a").handshakes.take(module.HANDSHAKES_S + 1)
        waiting = [asyncio.create_task(times.handshake("a")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded) as refused:
            await times.handshake("a")
        assert refused.value.retry_after_s == 5
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not times.of("a").handshakes.waiting
    await asyncio.sleep(module.AT_WORK_S + 0.1)
    assert not faults


def _work():
    until_s = time.thread_time() + 0.01
    while time.thread_time() < until_s:
        pass


async def test_who_asks_without_end_is_answered_later(times, busy, clock):
    """The loop's time of an answer is counted, also after a wait. The time that it waits is not."""
    done = []

    async def answer(name):
        await asyncio.sleep(0.05)
        _work()
        done.append(name)

    await times.counted("busy", answer("first"))
    busy.take(SAVED_S - 0.03)
    assert not busy.wait_s()
    busy.take(0.025)
    assert busy.wait_s()
    later = asyncio.create_task(times.counted("busy", answer("second")))
    await times.counted("other", answer("other"))
    assert done == ["first", "other"]
    clock.now_s += 10
    await later


async def test_the_time_of_all_tasks_of_a_connection_is_counted():
    """Child tasks count too, and waiting does not. Counting does not prevent the cancellation of a task."""
    connection, taken_s = ConnectionTime(loop_time()), []
    connection.take = taken_s.append

    async def child():
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):  # which cancels the task once
                await asyncio.Event().wait()
        _work()
        return "its result"

    async def run():
        module.measure(connection)
        _work()  # of a task that had begun already: whoever begins it counts it
        return await asyncio.create_task(child())

    assert await asyncio.create_task(run()) == "its result"
    assert 0.01 <= sum(taken_s) < 0.015


async def test_a_round_has_few_turns_however_many_wait():
    """Each says what it takes; those that do not fit into the round come in the next ones."""
    waiting = asyncio.gather(*(slice_queue().next(module.ROUND_S) for _ in range(50)))
    for _ in range(49):
        await asyncio.sleep(0)
    assert not waiting.done()
    await waiting


async def test_a_turn_that_fails_takes_nobody_elses():
    """Its error is reported to the event loop's handler."""
    errors, done = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    slice_queue().soon(lambda: 1 / 0)
    slice_queue().soon(done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_busy_task_waits_for_turns_and_a_rested_one_does_not(monkeypatch):
    """A slice is used up by time, however many rounds it has."""
    now_s, slice_s = 1_000.0, module.SLICE_S
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    time_slice, has_waited = module.TimeSlice(), []
    await time_slice.next_round()
    for passed_s in (slice_s / 3, slice_s / 3, 2 * slice_s, slice_s / 2, 2 * module.RESTED_S):
        now_s += passed_s
        others = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await time_slice.next_round()
        has_waited.append(bool(others))
    assert has_waited == [False, False, True, False, False]
