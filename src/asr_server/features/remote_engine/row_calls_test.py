"""Calls of rows on an event loop in a thread."""

import asyncio
import threading
import time

import pytest

from asr_server.features.remote_engine.row_calls import RowCalls

_PATIENCE_S = 10.0


@pytest.fixture
def calls():
    """Calls whose thread ends with the test."""
    made = RowCalls("test")
    yield made
    made.close()


def _take(calls, count):
    found, give_up_s = [], time.monotonic() + _PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < give_up_s, found
        found += calls.news(0.05)
    return found


def test_news_of_a_row_come_in_order_and_an_error_is_the_last(calls):
    """An error that a coroutine raises ends its own row alone."""

    async def work(tell):
        tell("one")
        await asyncio.sleep(0)
        tell("two")
        raise ValueError("broken")

    calls.start(1, work)
    *news, (key, error) = _take(calls, 3)
    assert news == [(1, "one"), (1, "two")]
    assert key == 1
    assert isinstance(error, ValueError)


def test_a_row_that_was_ended_tells_nothing_more(calls):
    """The row's coroutine is cancelled, and its news are not taken for those of a later row with the same key."""
    cancelled = threading.Event()

    async def endless(tell):
        tell("old")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def short(tell):
        tell("new")

    calls.start(7, endless)
    assert _take(calls, 1) == [(7, "old")]
    calls.run(asyncio.sleep(0))
    calls.end(7)
    assert cancelled.wait(_PATIENCE_S)
    calls.start(7, endless)
    calls.run(asyncio.sleep(0))
    calls.end(7)
    calls.start(7, short)
    assert _take(calls, 1) == [(7, "new")]


def test_closing_cancels_what_runs():
    """Closing ends the thread too."""
    calls, cancelled = RowCalls("test"), threading.Event()

    async def endless(tell):
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    calls.start(1, endless)
    calls.run(asyncio.sleep(0))
    calls.close()
    assert cancelled.is_set()
    assert not any(thread.name == "test" for thread in threading.enumerate())
