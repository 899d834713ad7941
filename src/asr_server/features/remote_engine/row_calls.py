"""Rows that are computed elsewhere: a coroutine for each, on an event loop in a thread of its own.

`RowCalls` is used from the engine thread alone. What the coroutines tell waits there until it is fetched.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

N = TypeVar("N")
R = TypeVar("R")

_CLOSE_S = 5.0


@dataclass(slots=True, eq=False)
class _Call:
    """The coroutine of one row. A later row may have the same key."""

    key: int
    work: Future[None] | None = None  # None until it has begun


class RowCalls(Generic[N]):
    """The calls of rows, by their keys. `N`: what a call tells of its row."""

    def __init__(self, name: str) -> None:
        self._calls: dict[int, _Call] = {}
        self._news: queue.SimpleQueue[tuple[_Call, N | Exception]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._calls)

    def start(self, key: int, work: Callable[[Callable[[N], None]], Coroutine[Any, Any, None]]) -> None:
        """Run `work` for a row. It is given the function by which it tells news; an exception is the last news."""
        call = self._calls[key] = _Call(key)
        call.work = asyncio.run_coroutine_threadsafe(self._follow(call, work), self._loop)

    def news(self, wait_s: float) -> Iterator[tuple[int, N | Exception]]:
        """Yield what has come, after a wait of at most `wait_s` if that is nothing. A row that was ended has no
        more."""
        while True:
            try:
                call, news = self._news.get(timeout=wait_s) if wait_s else self._news.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            if self._calls.get(call.key) is call:
                yield call.key, news

    def end(self, key: int) -> None:
        """Forget a row, and cancel its call unless that has ended. Unknown keys are ignored."""
        call = self._calls.pop(key, None)
        if call is not None and call.work is not None:
            call.work.cancel()

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float | None = None) -> R:
        """Run a coroutine on the loop and wait for its result. Raises `TimeoutError`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def close(self) -> None:
        """Cancel everything and end the thread."""
        for key in list(self._calls):
            self.end(key)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)

    async def _follow(self, call: _Call, work: Callable[[Callable[[N], None]], Coroutine[Any, Any, None]]) -> None:
        try:
            await work(lambda news: self._news.put((call, news)))
        except Exception as error:  # it ends this row alone
            self._news.put((call, error))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run until the loop is stopped, and then end what is left on it."""
    loop.run_forever()
    loop.run_until_complete(_cancel_others())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
