"""Work that callers ask for: fair shares of slots and memory, and threads that end when the caller leaves.

The threads of `asyncio.to_thread` are for the server's own work, and for work that is always short.
"""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from asr_server.core.errors import DeadlineExceeded, Overloaded

# After this many urgent waiters in a row, a waiter that is not urgent has its turn.
_URGENT_IN_A_ROW = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    caller: str
    units: int  # of the total
    urgent: bool
    granted: asyncio.Future[None]  # done when the caller holds the units


class FairShares:
    """`total` units, of which callers that already hold some may fill only `shared`. For one event loop.

    The rest is reserved for callers that hold none, so a single caller cannot keep another waiting. Urgent waiters come
    first, but the others are not kept waiting for ever. Then comes the caller that holds the least, then the one whose
    last turn is longest ago, then the first to arrive. A waiter whose units do not fit lets others pass.

    It divides all that callers share except the event loop (`net/loop_time.py`) and the engine (`schedule/`): decoders
    and their memory, processes that take one request at a time, threads, places for long texts and for recordings that
    are fetched, readers of shared sessions, the translation endpoint, and the turns of sessions that send faster than
    real time.
    """

    def __init__(self, shared: int, total: int) -> None:
        self._shared, self._total = shared, total
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._turns: dict[str, int] = {}  # the number of each caller's last turn; empty while nobody waits
        self._numbers = itertools.count(1)
        self._urgent_in_a_row = 0

    @property
    def held(self) -> int:
        return self._held.total()

    @contextmanager
    def taken_now(self, caller: str, refusal: Overloaded) -> Iterator[None]:
        """Hold a unit until the block ends. Does not wait: raises `refusal` unless more units are free than the caller
        holds. So one caller can take half of them, and some are left for the next caller."""
        if self._held[caller] >= self._total - self.held:
            raise refusal
        self._held[caller] += 1
        try:
            yield
        finally:
            self.give_back(caller)

    @asynccontextmanager
    async def taken(self, caller: str, units: int = 1) -> AsyncGenerator[None, None]:
        """Hold that many units until the block ends; waits until they are free. `units` is at most `total`."""
        await self.take(caller, units)
        try:
            yield
        finally:
            self.give_back(caller, units)

    async def take(self, caller: str, units: int = 1, *, urgent: bool = False) -> None:
        """Wait until that many units are free, and hold them until `give_back`."""
        waiter = _Waiter(caller, units, urgent, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._grant()
        try:
            await waiter.granted
        except BaseException:
            if waiter in self._waiting:  # cancelled before its turn
                self._waiting.remove(waiter)
                self._grant()
            else:
                self.give_back(caller, units)
            raise

    def give_back(self, caller: str, units: int = 1) -> None:
        self._held[caller] -= units
        self._held += Counter()  # drop callers that hold none
        self._grant()

    def _grant(self) -> None:
        """Grant units to waiters in turn, as long as they fit."""
        while fitting := list(filter(self._fits, self._waiting)):
            waiter = min(fitting, key=self._place)
            self._waiting.remove(waiter)
            self._held[waiter.caller] += waiter.units
            self._turns[waiter.caller] = next(self._numbers)
            self._urgent_in_a_row = self._urgent_in_a_row + 1 if waiter.urgent else 0
            if not waiter.granted.done():  # a waiter just cancelled gives the units back itself
                waiter.granted.set_result(None)
        if not self._waiting:
            self._urgent_in_a_row = 0
            self._turns.clear()

    def _place(self, waiter: _Waiter) -> tuple[bool, int, int]:
        comes_later = waiter.urgent is (self._urgent_in_a_row >= _URGENT_IN_A_ROW)
        return comes_later, self._held[waiter.caller], self._turns.get(waiter.caller, 0)

    def _fits(self, waiter: _Waiter) -> bool:
        return not self.held or self.held + waiter.units <= (self._shared if self._held[waiter.caller] else self._total)


P = ParamSpec("P")
T = TypeVar("T")

# The interpreter runs one thread at a time, and the engine and the event loop need it too.
_OF_ONE_CALLER, _OF_ALL = 1, 2
_LIMIT_S = 60.0
_STOP_AGAIN_S = 0.1
_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, FairShares] = WeakKeyDictionary()
# The caller for whom the work of the present task, and of all tasks that it starts, counts.
current_caller = contextvars.ContextVar("caller", default="")


def in_background(work: Callable[[], T], name: str) -> Future[T]:
    """Run `work` on a thread of its own that does not keep the process alive."""
    future: Future[T] = Future()

    def run() -> None:
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except BaseException as error:  # raised again by `result`
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def in_thread(work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Run Python code in a thread of its own and return its result. Raises `DeadlineExceeded` after a minute.

    Cancelling ends the code, as the time limit does, by an exception that is raised in it.
    """
    loop = asyncio.get_running_loop()
    async with _shares.setdefault(loop, FairShares(_OF_ONE_CALLER, _OF_ALL)).taken(current_caller.get()):
        thread = _WorkThread(loop, partial(contextvars.copy_context().run, work, *args, **options))
        try:
            await asyncio.wait([thread.result], timeout=_LIMIT_S)
        finally:
            thread.stop()
    if not thread.result.done():
        raise DeadlineExceeded(f"The text was not processed within {_LIMIT_S:.0f} s.")
    try:
        found: T = thread.result.result()
        return found
    finally:
        # An exception refers to frames, and so to the work and its text: all would stay in memory until a collection.
        del thread.result


class _Stopped(BaseException):
    """Raised in a thread whose result nobody waits for."""


class _WorkThread:
    """One piece of work, in a thread that does not keep the process from ending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> None:
        self.result: asyncio.Future[Any] = loop.create_future()
        self._loop, self._work = loop, work
        self._lock, self._is_over, self._has_begun = threading.Lock(), False, False
        # `Thread.start` would block the event loop until the thread runs: up to 76 ms on a busy machine.
        self._ident = _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        found, error = None, None
        with suppress(_Stopped):
            with self._lock:
                if self._is_over:  # stopped before it began
                    return
                self._has_begun = True
            try:
                found = self._work()
            except Exception as raised:
                error = raised
        while not self._is_over:
            with suppress(_Stopped), self._lock:
                self._is_over = True
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._report, found, error)
        error = None  # it refers to this frame: see `in_thread`

    def stop(self) -> None:
        """Raise an exception in the work, repeatedly until it is over: an exception is lost if it is raised during a
        callback of the garbage collector."""
        with self._lock:
            if not self._has_begun:  # and never will; an exception would end up in the log
                self._is_over = True
            if self._is_over:
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(_Stopped))
        self._loop.call_later(_STOP_AGAIN_S, self.stop)

    def _report(self, found: Any, error: Exception | None) -> None:
        if error is not None:
            self.result.set_exception(error)
            self.result.exception()  # marks it as retrieved: the task that asked may be cancelled
        else:
            self.result.set_result(found)
