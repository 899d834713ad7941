"""Stops work that nobody waits for any more. Not a time limit: that is the service's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Message, Receive

from asr_server.core.errors import Cancelled

T = TypeVar("T")

_CLEAN_CLOSES = {1000, 1001}
_NO_STATUS = 1005


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client hangs up first, `work` is cancelled and `Cancelled` raised.

    To be called after the body has been read: what `receive` yields then can only be the end of the connection.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("The client closed the connection.")
        return task.result()
    finally:
        for waiter in (task, gone):
            waiter.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def ended_in_order(message: Message) -> bool:
    """Whether a socket's client sent a close frame: uvicorn reports a lost one as 1005 too, but without a reason."""
    code = message.get("code")
    return code in _CLEAN_CLOSES or (code == _NO_STATUS and message.get("reason") is not None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
