"""How the time of the event loop is counted by caller, with a clock of the test's own."""

import asyncio
import time

import pytest

from asr_server.core.conftest import Clock
from asr_server.core.errors import Overloaded
from asr_server.net import loop_time as module
from asr_server.net.loop_time import (
    OWED_S,
    SAVED_S,
    SHARE,
    SLICE_S,
    ConnectionTime,
    LoopTime,
    TimeSlice,
    loop_time,
    measure,
    slice_queue,
)


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


def test_a_caller_waits_for_what_it_took_beyond_its_savings(busy, clock):
    """As long as its share takes to fill the bucket up to nothing, and no longer."""
    busy.take(SAVED_S)
    assert busy.wait_s() == 0
    busy.take(SHARE)
    assert busy.wait_s() == pytest.approx(1)
    clock.now_s += 0.75
    assert busy.wait_s() == pytest.approx(0.25)
    clock.now_s += 0.26
    assert busy.wait_s() == 0


def test_a_caller_owes_a_bounded_time(busy):
    """A single costly message does not shut it out for minutes."""
    busy.take(60.0)
    assert busy.wait_s() == pytest.approx(OWED_S / SHARE)


def test_time_costs_nothing_while_nobody_else_has_work(times, clock):
    """Neither then nor later, when others come; a moment after their last request it costs nothing again."""
    alone = times.of("alone")
    times.worked(alone)
    alone.take(60.0)
    with times.working(times.of("other")):
        assert alone.wait_s() == 0
        alone.take(60.0)
        assert alone.wait_s() > 0
    assert alone.wait_s() > 0
    clock.now_s += module.AT_WORK_S
    assert alone.wait_s() == 0


def test_the_callers_own_requests_are_not_work_of_others(times):
    """Nor are its messages, however many of its own came in between."""
    caller = times.of("a")
    times.worked(caller)
    with times.working(caller):
        times.worked(caller)
        assert not times.others_work(caller)
        times.worked(times.of("b"))
        times.worked(caller)
        assert times.others_work(caller)


def test_many_connections_of_a_caller_share_one_bucket(times, busy):
    """All of them wait for the time that one of them took."""
    first, second = ConnectionTime(times), ConnectionTime(times)
    first.caller = second.caller = busy
    second.take(module.BEGIN_S)
    assert not second.is_over
    first.take(1.0)
    assert second.is_over


def test_audio_at_the_pace_of_speech_is_never_late(times, busy, clock):
    """150 sessions with frames of 10 ms take nearly all that these pay for, though others of the caller owe time."""
    sessions = [ConnectionTime(times) for _ in range(150)]
    busy.take(60.0)
    for session in sessions:
        session.caller = busy
    for _ in range(100):
        clock.now_s += 0.01
        for session in sessions:
            session.pay(320)
            session.take(0.9 * (module.MESSAGE_S + 320 * module.BYTE_S))
            assert not session.is_over
    assert busy.wait_s() < OWED_S / SHARE  # nothing of it was taken from the caller's bucket


def test_audio_faster_than_speech_and_tiny_frames_do_not_pay(times, busy, clock):
    """A recording that comes at a thousand times its speed pays for its pace, and a byte is no audio."""
    connection = ConnectionTime(times)
    connection.caller = busy
    busy.take(60.0)
    clock.now_s += 0.01
    for _ in range(100):
        connection.pay(320_000)
    connection.take(module.BEGIN_S + module.PAID_S)
    assert connection.is_over
    tiny = ConnectionTime(times)
    tiny.caller = busy
    tiny.take(module.BEGIN_S)
    for _ in range(1_000):
        tiny.pay(1)
    assert tiny.is_over


def test_an_idle_connection_can_still_answer_pings(times, busy, clock):
    """Every few seconds, though its caller owes time."""
    idle = ConnectionTime(times)
    idle.caller = busy
    idle.take(module.BEGIN_S)
    for _ in range(10):
        clock.now_s += 2.0
        busy.take(60.0)
        assert not idle.is_over
        idle.take(0.0003)


def test_few_callers_are_remembered(times, monkeypatch):
    """The callers that were asked for last are kept."""
    monkeypatch.setattr(module, "MAX_CALLERS", 3)
    kept, forgotten = times.of("a"), times.of("b")
    for name in "cad":
        times.of(name)
    assert times.of("a") is kept
    assert times.of("b") is not forgotten


async def test_connections_that_wait_are_read_in_order_when_their_time_has_come():
    """One by one, the time that one takes being counted before the next."""
    times, order = LoopTime(), []
    caller = times.of("a")
    with times.working(times.of("b")):
        caller.take(SAVED_S + 0.02 * SHARE)
        began_s = time.monotonic()
        for number in range(3):
            caller.later(lambda number=number: (order.append(number), caller.take(0.02 * SHARE)))
        done = asyncio.Event()
        caller.later(done.set)
        await done.wait()
    assert order == [0, 1, 2]
    assert time.monotonic() - began_s >= 0.055


def test_sixty_sockets_are_opened_at_once_and_then_ten_a_second(times, clock):
    """The figures are those of docs/run/security.md, while others have work."""
    opened, handshakes = [], times.of("a").handshakes
    with times.working(times.of("b")):
        for _ in range(1_000):
            while not handshakes.wait_s():
                handshakes.take(module.HANDSHAKE_S)
                opened.append(clock.now_s - 1_000)
            clock.now_s += 0.01
    assert opened.count(0) == pytest.approx(60, abs=1)
    assert len(opened) == pytest.approx(160, abs=2)


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


async def test_who_asks_without_end_is_answered_later(times, clock):
    """The loop's time of an answer is counted, also behind a wait, and what it waits for is not."""
    done = []

    async def answer(name):
        await asyncio.sleep(0.05)
        until_s = time.thread_time() + 0.01
        while time.thread_time() < until_s:
            pass
        done.append(name)

    busy = times.of("busy")
    with times.working(times.of("other")):
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
    assert done == ["first", "other", "second"]


async def test_an_answer_that_fails_or_is_given_up_is_so_for_who_waits_for_it():
    """This holds too before its time has come."""
    times = LoopTime()

    async def answer():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await times.counted("busy", answer())
    with times.working(times.of("other")):
        times.of("busy").take(SAVED_S + OWED_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(times.counted("busy", answer()), 0.02)


async def test_the_time_of_all_tasks_of_a_connection_is_counted():
    """Also of tasks that its tasks begin. Waiting takes none, and other connections are not charged."""
    connection, other = ConnectionTime(loop_time()), ConnectionTime(loop_time())
    connection.caller, other.caller = LoopTime().of("a"), LoopTime().of("b")
    taken_s = []
    connection.take = taken_s.append

    def work():
        ends_s = time.thread_time() + 0.01
        while time.thread_time() < ends_s:
            pass

    async def child():
        await asyncio.sleep(0.02)
        work()
        return "its result"

    async def run():
        measure(connection)
        work()  # of a task that had begun already: whoever begins it counts it
        return await asyncio.create_task(child())

    assert await asyncio.create_task(run()) == "its result"
    assert 0.01 <= sum(taken_s) < 0.015


async def test_errors_and_cancellation_reach_a_task_that_is_counted():
    """As if it were not."""
    seen = []

    async def waits():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run():
        measure(ConnectionTime(loop_time()))
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fails())

    async def fails():
        return 1 / 0

    await asyncio.create_task(run())
    assert seen == ["cancelled"]


async def test_a_round_has_few_turns_however_many_wait():
    """Each says what it takes; those that do not fit into the round come in the next ones."""
    waiting = asyncio.gather(*(slice_queue().next(module.ROUND_S) for _ in range(50)))
    rounds = 0
    while not waiting.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds >= 50


async def test_the_time_of_callbacks_is_measured():
    """The time of a callback that says nothing is measured too."""
    done = []

    def work():
        time.sleep(module.ROUND_S)
        done.append(time.monotonic())

    for _ in range(10):
        slice_queue().soon(work)
    counts = []
    while len(done) < 10:
        before = len(done)
        await asyncio.sleep(0)
        counts.append(len(done) - before)
    assert max(counts) == 1
    assert not slice_queue().waiting


async def test_turns_are_in_order_and_whoever_comes_back_is_last():
    """Nobody gets two turns before all others have had one."""
    order = []

    def again(name, left):
        order.append(name)
        if left:
            slice_queue().soon(lambda: again(name, left - 1))

    for name in "abc":
        slice_queue().soon(lambda name=name: again(name, 2))
    for _ in range(100):
        await asyncio.sleep(0)
    assert "".join(order) == "abcabcabc"


async def test_a_turn_that_fails_takes_nobody_elses():
    """Its error is reported to the event loop's handler."""
    errors, done = [], asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    slice_queue().soon(lambda: 1 / 0)
    slice_queue().soon(done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert [type(error) for error in errors] == [ZeroDivisionError]


async def test_a_cancelled_wait_takes_no_turn():
    """Its place in the queue passes, and the others have theirs."""
    task = asyncio.create_task(slice_queue().next())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait_for(slice_queue().next(), 10)
    assert task.cancelled()


async def test_a_busy_task_waits_for_turns_and_a_rested_one_does_not(monkeypatch):
    """A slice is used up by time, however many rounds it has."""
    now_s = 1_000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    time_slice, has_waited = TimeSlice(), []
    await time_slice.next_round()
    for passed_s in (SLICE_S / 3, SLICE_S / 3, 2 * SLICE_S, SLICE_S / 2, 2 * module.RESTED_S):
        now_s += passed_s
        others = []
        asyncio.get_running_loop().call_soon(others.append, "ran")
        await time_slice.next_round()
        has_waited.append(bool(others))
    assert has_waited == [False, False, True, False, False]
