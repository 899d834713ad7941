"""Threads for work that callers ask for: a place by caller, a limit of time, and an end when the caller leaves.

The threads of `asyncio.to_thread` are for what the server needs for itself, and for work that is always short.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from asr_server.core.errors import DeadlineExceeded
from asr_server.processes.shares import FairShares

P = ParamSpec("P")
T = TypeVar("T")

# The interpreter runs one thread at a time, and the engine and the event loop need it too.
_OF_ONE_CALLER, _OF_ALL = 1, 2
_LIMIT_S = 60.0
_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, FairShares] = WeakKeyDictionary()
_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")


def work_for(caller: str) -> None:
    """Count the work of the present task, and of all that it starts, as the caller's."""
    _caller.set(caller)


def current_caller() -> str:
    return _caller.get()


async def in_thread(work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Run Python code in a thread of its own and return its result. Raises `DeadlineExceeded` after a minute.

    Cancelling ends the code, as the limit does: an exception is raised in it.
    """
    loop = asyncio.get_running_loop()
    async with _shares.setdefault(loop, FairShares(_OF_ONE_CALLER, _OF_ALL)).taken(current_caller()):
        thread = _WorkThread(loop, partial(contextvars.copy_context().run, work, *args, **options))
        thread.start()
        try:
            await asyncio.wait([thread.result], timeout=_LIMIT_S)
        finally:
            thread.stop()
    if not thread.result.done():
        raise DeadlineExceeded(f"The text was not processed within {_LIMIT_S:.0f} s.")
    found: T = thread.result.result()
    return found


class _Stopped(BaseException):
    """Nobody waits for the result."""


class _WorkThread(threading.Thread):
    """One piece of work. As a daemon it does not keep the process from ending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Any]) -> None:
        super().__init__(name="caller", daemon=True)
        self.result: asyncio.Future[Any] = loop.create_future()
        self._loop, self._work = loop, work
        self._lock, self._is_over = threading.Lock(), False

    def run(self) -> None:
        """Do the work and report its outcome to the event loop."""
        found, error = None, None
        with suppress(_Stopped):
            try:
                found = self._work()
            except Exception as raised:
                error = raised
            with self._lock:
                self._is_over = True
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._report, found, error)

    def stop(self) -> None:
        """Raise an exception in the work, unless it is over."""
        with self._lock:
            if not self._is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(_Stopped))

    def _report(self, found: Any, error: Exception | None) -> None:
        if error is not None:
            self.result.set_exception(error)
            self.result.exception()  # whoever asked may have gone
        else:
            self.result.set_result(found)
