"""Server-sent events: a response that streams the events of some work, with keep-alives, and ends with any error.
Other content, such as audio, is sent the same way, without keep-alives.

Clients drop an event that does not end with a blank line, and fail on `id:`, `retry:` and events without data (tried
with OpenAI's clients). Comment lines are safe.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from loguru import logger
from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from asr_server.core.errors import AsrError, Cancelled
from asr_server.net.body import while_connected
from asr_server.net.errors import INTERNAL, error_body

# Proxies and Node's fetch give up on a silent connection after 60 s or more.
PING_S = 15.0
_PING = ": ping\n\n"
EVENTS = "text/event-stream; charset=utf-8"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# The work waits when this many events wait for a slow reader.
_BUFFERED_EVENTS = 16

E = TypeVar("E")
# Work that emits events by calling its argument.
Work = Callable[[Callable[[E], Awaitable[None]]], Coroutine[Any, Any, object]]

# The event loop keeps only weak references to tasks.
_tasks: set[asyncio.Task[None]] = set()


class EventBuffer(Generic[E]):
    """Runs `work` in its own task and buffers its events for one reader.

    When a client leaves, Starlette cancels the reading task again at each of its awaits. The work runs in another task,
    so it is cancelled only once and can clean up.
    """

    def __init__(self, work: Work[E]) -> None:
        self._items: asyncio.Queue[E | Exception | None] = asyncio.Queue(_BUFFERED_EVENTS)
        self._item: E | Exception | None = None
        self._has_reader = True
        self._task = asyncio.create_task(self._run(work))
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next event, the end or an error, which `take` then gives. Return False after the timeout."""
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
        """Cancel the work because the reader has left. Does nothing if the work is done."""
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


async def respond(
    request: Request, work: Work[E], to_frames: Callable[[E], Sequence[str | bytes]], media_type: str = EVENTS
) -> StreamingResponse:
    """Wait for the first event of `work`. Return a response that streams the frames of all events.

    A later error is sent as the last event. With another `media_type` it cuts the connection, so that the client does
    not mistake a part for the whole. If `work` fails before its first event, its error is raised and becomes an HTTP
    status. Raises `Cancelled` if the client leaves before the first event.
    """
    buffer = EventBuffer(work)
    try:
        await while_connected(request.receive, buffer.wait())
        first = buffer.take()
    except BaseException:
        buffer.cancel()
        raise
    request.state.outcome = Cancelled.code  # for a client that leaves; `_stream` deletes or replaces it
    frames = _stream(request, buffer, first, to_frames, is_events=media_type == EVENTS)
    return _EventResponse(frames, buffer, media_type)


class _CutOff(Exception):
    """The work has failed, and its error cannot be sent in the response."""


class _EventResponse(StreamingResponse):
    """A response that cancels the work even if the client leaves before the first frame."""

    def __init__(self, frames: AsyncGenerator[str | bytes, None], buffer: EventBuffer[Any], media_type: str) -> None:
        super().__init__(frames, media_type=media_type, headers=_HEADERS)
        self._buffer = buffer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Leave its body unfinished if the client leaves or the work is cut off."""
        try:
            with suppress(ClientDisconnect, _CutOff):
                await super().__call__(scope, receive, send)
        finally:
            self._buffer.cancel()


async def _stream(
    request: Request,
    buffer: EventBuffer[E],
    first: E | None,
    to_frames: Callable[[E], Sequence[str | bytes]],
    *,
    is_events: bool,
) -> AsyncGenerator[str | bytes, None]:
    """Yield the frames of `first` and all later events. An event stream also gets pings, and an error as its last
    frame."""
    event = first
    try:
        while event is not None:
            for content in to_frames(event):
                yield content
            while not await buffer.wait(PING_S):
                if is_events:
                    yield _PING
            event = buffer.take()
        del request.state.outcome
    except AsrError as error:
        request.state.outcome = error.code
        if not is_events:
            logger.error("answer cut off", id=request.state.id, code=error.code, reason=error.message)
            raise _CutOff from None
        yield frame(error_body(error))
    except Exception as error:  # the status has been sent, so the error becomes the last event
        request.state.outcome = AsrError.code
        logger.opt(exception=error).error("unexpected error", id=request.state.id)
        if not is_events:
            raise _CutOff from None
        yield frame(error_body(INTERNAL))


def frame(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
