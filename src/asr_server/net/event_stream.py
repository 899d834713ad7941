"""Server-sent events: a response with the events that some work emits, keep-alives, and an error as its last event.

Clients drop an event that does not end with a blank line, and fail on `id:`, `retry:` and events without data (tried
with OpenAI's clients). Comment lines are safe.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from loguru import logger
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from asr_server.core.errors import AsrError, Cancelled
from asr_server.net.body import while_connected
from asr_server.net.errors import INTERNAL, error_body

# Proxies and Node's fetch give up on a silent connection after 60 s or more.
PING_S = 15.0
_PING = ": ping\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# The work waits when this many events wait for a slow reader.
_BUFFERED_EVENTS = 16

E = TypeVar("E")
# Work that emits events by calling its argument.
Work = Callable[[Callable[[E], Awaitable[None]]], Coroutine[Any, Any, object]]

# The event loop refers to its tasks only weakly.
_tasks: set[asyncio.Task[None]] = set()


class EventBuffer(Generic[E]):
    """Runs `work` in its own task and buffers its events for one reader.

    When a client leaves, Starlette cancels the reading task again at each of its awaits. The work is another task, so
    that it is cancelled once and can clean up.
    """

    def __init__(self, work: Work[E]) -> None:
        self._items: asyncio.Queue[E | Exception | None] = asyncio.Queue(_BUFFERED_EVENTS)
        self._item: E | Exception | None = None
        self._has_reader = True
        self._task = asyncio.create_task(self._run(work))
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next event, the end or an error, for `take`. Return False if none came in time."""
        try:
            # Safe to cancel: `Queue.get` takes an item out in its last step or not at all.
            async with asyncio.timeout(timeout_s):
                self._item = await self._items.get()
        except TimeoutError:
            return False
        return True

    def take(self) -> E | None:
        """Return the event that `wait` got, or None at the end. Raises the error that ended the work."""
        if isinstance(self._item, Exception):
            raise self._item
        return self._item

    def cancel(self) -> None:
        """Cancel the work, since the reader has left. Does nothing if it is done."""
        self._has_reader = False
        self._task.cancel()

    async def _run(self, work: Work[E]) -> None:
        end: Exception | None = None
        try:
            await work(self._items.put)
        except Exception as error:
            end = error
        if self._has_reader:  # otherwise the put would wait for ever in a full queue
            await self._items.put(end)


async def respond(request: Request, work: Work[E], to_frames: Callable[[E], Sequence[str]]) -> StreamingResponse:
    """Return the response that sends the frames of the events of `work`, as soon as there is an event.

    Raises the error of work that fails before its first event, so that it becomes an HTTP status, and `Cancelled` if
    the client leaves before it.
    """
    buffer = EventBuffer(work)
    try:
        await while_connected(request.receive, buffer.wait())
        first = buffer.take()
    except BaseException:
        buffer.cancel()
        raise
    return _EventResponse(_stream(request, buffer, first, to_frames), buffer)


class _EventResponse(StreamingResponse):
    """Cancels the work also if the client leaves before the first frame."""

    def __init__(self, frames: AsyncGenerator[str, None], buffer: EventBuffer[Any]) -> None:
        super().__init__(frames, media_type="text/event-stream; charset=utf-8", headers=_HEADERS)
        self._buffer = buffer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._buffer.cancel()


async def _stream(
    request: Request, buffer: EventBuffer[E], first: E | None, to_frames: Callable[[E], Sequence[str]]
) -> AsyncGenerator[str, None]:
    """Yield the frames of `first` and all later events, pings in between, and an error as the last frame."""
    event = first
    try:
        while event is not None:
            for text in to_frames(event):
                yield text
            while not await buffer.wait(PING_S):
                yield _PING
            event = buffer.take()
    except (asyncio.CancelledError, GeneratorExit):
        request.state.outcome = Cancelled.code
        raise
    except AsrError as error:
        request.state.outcome = error.code
        yield frame(error_body(error))
    except Exception as error:  # the status has been sent, so the error becomes the last event
        request.state.outcome = AsrError.code
        logger.opt(exception=error).error("unexpected error", id=request.state.id)
        yield frame(error_body(INTERNAL))


def frame(content: dict[str, Any]) -> str:
    """Return the frame of one event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
