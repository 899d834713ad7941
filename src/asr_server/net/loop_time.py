"""Event loop time by caller. A caller that uses more than a fair share is read later while others have work.

The event loop and the engine thread share one interpreter, so a busy loop slows down everybody's recordings. The
processor time of all tasks of a caller's sockets is measured. Audio at the pace of speech pays for itself. All other
time is taken from the caller's token bucket, which all of its connections share.

Connections that send as fast as they can share the loop in time slices. A connection with more work than fits into a
slice waits for its next turn. Turns are given in order. A round of the loop gives turns for at most `ROUND_S`, so it
takes no longer for many such connections than for one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from asr_server.core.errors import Overloaded

# The share of the loop's time that a caller has besides its audio, and how much of it the caller may save up. Another
# caller's recording takes a few percent longer for each caller that uses its whole share.
SHARE, SAVED_S = 0.05, 0.1
# The most that a caller can owe: a caller that sent without end is read again after at most ten seconds.
OWED_S = 0.5
# Each audio message earns 0.2 ms of loop time, and 5 ms per second of 16 kHz audio: more than it takes, voice detection
# and texts included. Messages under 5 ms of audio earn nothing.
MESSAGE_S, BYTE_S, _LEAST_BYTES = 0.0002, 0.005 / 32_000, 160
# The most time that audio can earn in a second, at 100 messages a second, and how much of it a connection may save up.
_PACE, PAID_S = 0.025, 0.05
# The time of a connection without audio: enough to open a session and to answer pings.
_IDLE_SHARE, BEGIN_S = 0.0002, 0.01
# A caller has work until this long after its last request or message.
AT_WORK_S = 1.0
# The pause between two waiting connections of a caller, so that the time of the first is known before the next is read.
_BETWEEN_S = 0.002
# The time of a refused request or handshake, from the connection to the answer.
REFUSAL_S = 0.0015
# The time of a handshake and of opening and ending a session, and how much of it a caller may save up: when a server
# shuts down, all of the caller's sessions move at once.
HANDSHAKE_S, HANDSHAKES_S = 0.005, 0.3
# The most requests and connections of a caller that wait at once.
MOST_WAITING = 1_000
MAX_CALLERS = 10_000


class CallerTime:
    """The token bucket of one caller, and its connections that wait to be read."""

    def __init__(self, loop_time: LoopTime, owner: CallerTime | None = None, saved_s: float = SAVED_S) -> None:
        self._loop_time, self._saved_s = loop_time, saved_s
        self._owner = owner or self  # the caller; its own work is not that of others
        self._left_s, self._counted_s = saved_s, loop_time.now_s()
        self.waiting: deque[Callable[[], None]] = deque()  # connections
        self._timer: asyncio.TimerHandle | None = None
        self.requests = 0  # under way
        self.worked_s = -AT_WORK_S  # when it last had work

    @cached_property
    def handshakes(self) -> CallerTime:
        return CallerTime(self._loop_time, self, HANDSHAKES_S)

    def take(self, seconds: float) -> None:
        """Count loop time. It is free while nobody else has work."""
        self._refill()
        if self._loop_time.others_work(self._owner):
            self._left_s = max(self._left_s - seconds, -OWED_S)

    def wait_s(self) -> float:
        """Return the seconds until the caller may be read, 0 if it may be read now."""
        self._refill()
        return -self._left_s / SHARE if self._left_s < 0 and self._loop_time.others_work(self._owner) else 0.0

    def later(self, callback: Callable[[], None]) -> None:
        """Call the callback when the caller may be read, after the callbacks that already wait."""
        self.waiting.append(callback)
        if self._timer is None:
            self._set_timer(self.wait_s())

    def _refill(self) -> None:
        now_s = self._loop_time.now_s()
        self._left_s = min(self._left_s + (now_s - self._counted_s) * SHARE, self._saved_s)
        self._counted_s = now_s

    def _set_timer(self, wait_s: float) -> None:
        # Check earlier than the whole wait: the caller may be read as soon as the others have no work.
        wait_s = min(max(wait_s, _BETWEEN_S), AT_WORK_S)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        self._timer = None
        try:
            if self.waiting and not self.wait_s():
                self.waiting.popleft()()
        finally:
            if self.waiting and self._timer is None:
                self._set_timer(self.wait_s())


class LoopTime:
    """The callers of one event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s  # the monotonic clock
        self._callers: OrderedDict[str, CallerTime] = OrderedDict()
        self._requests = 0
        self._latest: CallerTime | None = None  # the last caller that had work
        self._before: CallerTime | None = None  # the last other caller that had work

    def of(self, caller: str) -> CallerTime:
        """Return the caller's bucket. If there are too many, drop the least recently used one."""
        found = self._callers.pop(caller, None) or CallerTime(self)
        self._callers[caller] = found
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return found

    def worked(self, caller: CallerTime) -> None:
        """Note that the caller has work now."""
        if caller is not self._latest:
            self._before, self._latest = self._latest, caller
        caller.worked_s = self.now_s()

    @contextmanager
    def working(self, caller: CallerTime) -> Iterator[None]:
        """Count a request as work of the caller until the block ends."""
        self._requests += 1
        caller.requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            caller.requests -= 1
            self.worked(caller)

    def others_work(self, caller: CallerTime) -> bool:
        """Return True if anybody else has work, or had until a moment ago."""
        if self._requests > caller.requests:
            return True
        other = self._before if caller is self._latest else self._latest
        return other is not None and self.now_s() < other.worked_s + AT_WORK_S

    async def charged(self, caller: str, cost_s: float) -> None:
        """Wait until the caller may use more time, then charge it `cost_s` for work whose time is not measured."""
        found = self.of(caller)
        await _turn(found)
        found.take(cost_s)

    async def handshake(self, caller: str) -> None:
        """Wait until one more WebSocket of the caller may be opened. Raises `Overloaded` if too many wait."""
        handshakes = self.of(caller).handshakes
        if len(handshakes.waiting) >= MOST_WAITING:
            raise Overloaded("Too many of your connections are being opened.", retry_after_s=5)
        await _turn(handshakes)
        handshakes.take(HANDSHAKE_S)

    async def counted(self, caller: str, steps: Coroutine[Any, Any, None]) -> None:
        """Run the steps when the caller may use more loop time, and count the time that they take."""
        found = self.of(caller)
        try:
            await _turn(found)
        except BaseException:
            steps.close()  # or Python would warn that they were never run
            raise
        await _Measured(steps, found)


async def _turn(caller: CallerTime) -> None:
    """Wait until the caller may use more time. Return at once if too many already wait."""
    if (caller.waiting or caller.wait_s()) and len(caller.waiting) < MOST_WAITING:
        turn = asyncio.get_running_loop().create_future()
        caller.later(lambda: None if turn.done() else turn.set_result(None))
        own = caller.waiting[-1]
        try:
            await turn
        finally:
            with suppress(ValueError):  # its turn has come
                caller.waiting.remove(own)


class ConnectionTime:
    """The loop time that one connection uses, and the time that its audio earns."""

    def __init__(self, loop_time: LoopTime) -> None:
        self._loop_time = loop_time
        self.caller: CallerTime | None = None  # None until access has been checked
        self._paid_s, self._pace_s, self._counted_s = BEGIN_S, PAID_S, loop_time.now_s()

    @property
    def is_over(self) -> bool:
        """Return True if the connection must wait before it is read again."""
        if self.caller is None:
            return False
        self._refill()
        return self._paid_s < MESSAGE_S and (bool(self.caller.waiting) or self.caller.wait_s() > 0)

    def take(self, seconds: float) -> None:
        """Count loop time, first against the time that audio earned, then against the caller's bucket."""
        self._paid_s -= seconds
        if self._paid_s < 0 and self.caller is not None:
            self.caller.take(-self._paid_s)
            self._paid_s = 0.0

    def pay(self, size_bytes: int) -> None:
        """Earn the time of an audio message, sent or received."""
        if size_bytes >= _LEAST_BYTES:
            self._refill()
            paid_s = min(MESSAGE_S + size_bytes * BYTE_S, self._pace_s)
            self._pace_s -= paid_s
            self._paid_s = min(self._paid_s + paid_s, PAID_S)

    def worked(self) -> None:
        if self.caller is not None:
            self._loop_time.worked(self.caller)

    def _refill(self) -> None:
        now_s = self._loop_time.now_s()
        past_s, self._counted_s = now_s - self._counted_s, now_s
        self._pace_s = min(self._pace_s + past_s * _PACE, PAID_S)
        if self._paid_s < BEGIN_S:
            self._paid_s = min(self._paid_s + past_s * _IDLE_SHARE, BEGIN_S)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTime] = WeakKeyDictionary()
_connection: ContextVar[ConnectionTime | None] = ContextVar("connection", default=None)


def loop_time() -> LoopTime:
    """Return the `LoopTime` of the running event loop. The first call starts measuring the loop's tasks."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        _of_loops[loop] = LoopTime()
        loop.set_task_factory(_measured_task)
    return _of_loops[loop]


def measure(connection: ConnectionTime) -> None:
    _connection.set(connection)


async def own_turn() -> None:
    """Wait while the current task's connection has used up its own time and its caller's."""
    connection = _connection.get()
    if connection is not None and connection.caller is not None and connection.is_over:
        await _turn(connection.caller)


class _Measured(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are timed. Counts processor time, since a step may wait for the interpreter."""

    def __init__(self, steps: Coroutine[Any, Any, Any], taker: ConnectionTime | CallerTime) -> None:
        self._steps, self._taker = steps, taker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)  # `cr_frame` and others, for tools that print a task's stack

    def send(self, value: Any) -> Any:
        began_s = time.thread_time()
        try:
            return self._steps.send(value)
        finally:
            self._taker.take(time.thread_time() - began_s)

    def throw(self, *error: Any) -> Any:
        began_s = time.thread_time()
        try:
            return self._steps.throw(*error)
        finally:
            self._taker.take(time.thread_time() - began_s)

    def close(self) -> None:
        self._steps.close()

    # An awaiting coroutine asks for the steps one by one, as a task does.

    def __await__(self) -> Generator[Any, Any, Any]:
        return self  # this class has the generator's methods that `await` uses

    __iter__ = __await__

    def __next__(self) -> Any:
        return self.send(None)


def _measured_task(loop: asyncio.AbstractEventLoop, steps: Any, **options: Any) -> asyncio.Task[Any]:
    context = options.get("context")
    connection = _connection.get() if context is None else context.get(_connection)
    return asyncio.Task(steps if connection is None else _Measured(steps, connection), loop=loop, **options)


# All other tasks of the loop wait during a slice.
SLICE_S = 0.0005
# A request takes several rounds of the event loop.
ROUND_S = 0.001
# A task that has not used the event loop for this long need not wait for a turn.
RESTED_S = 0.05


class SliceQueue:
    """The callbacks that wait for a time slice of one event loop."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[float, Callable[[], None]]] = deque()  # costs and callbacks

    def soon(self, callback: Callable[[], None], cost_s: float = 0.0) -> None:
        """Call the callback in a later round. `cost_s`: the time it uses later; that of the call is measured."""
        self.waiting.append((cost_s, callback))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run)

    async def next(self, cost_s: float = SLICE_S) -> None:
        """Wait for a turn. `cost_s`: how long the caller then uses the event loop."""
        turn = asyncio.get_running_loop().create_future()
        # A task that is cancelled while it waits leaves its callback in the queue, which then does nothing.
        self.soon(lambda: None if turn.done() else turn.set_result(None), cost_s)
        await turn

    def _run(self) -> None:
        ends_s = time.monotonic() + ROUND_S
        left = len(self.waiting)  # callbacks added meanwhile wait for the next round
        try:
            while left and time.monotonic() < ends_s:
                # Removed after the call: `soon`, called meanwhile, must not find the queue empty.
                cost_s, callback = self.waiting[0]
                left, ends_s = left - 1, ends_s - cost_s
                try:
                    callback()
                finally:
                    self.waiting.popleft()
        finally:
            if self.waiting:
                asyncio.get_running_loop().call_soon(self._run)


# By loop, since tests have several.
_slice_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, SliceQueue] = WeakKeyDictionary()


def slice_queue() -> SliceQueue:
    """Return the queue of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _slice_queues:
        _slice_queues[loop] = SliceQueue()
    return _slice_queues[loop]


class TimeSlice:
    """Makes a loop give way even if its `await`s return at once. The loop awaits `next_round` in each iteration."""

    def __init__(self) -> None:
        self._ends_s = 0.0

    async def next_round(self) -> None:
        """Wait for a turn if the slice has ended."""
        now_s = time.monotonic()
        if now_s >= self._ends_s:
            if now_s < self._ends_s + RESTED_S:
                await slice_queue().next()
            self._ends_s = time.monotonic() + SLICE_S
