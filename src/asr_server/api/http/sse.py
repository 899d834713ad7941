"""Server-sent events: OpenAI's and our own, with keep-alives and errors in the middle. Frames text; decides nothing.

Clients drop an event that does not end with a blank line, and stumble over `id:`, `retry:` and events without data
(measured with OpenAI's clients); comment lines are safe.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from loguru import logger
from starlette.requests import Request
from starlette.responses import StreamingResponse

from asr_server.api.edge.request_log import log_fields
from asr_server.api.errors import error_body, internal_error_body
from asr_server.core.errors import AsrError, Cancelled
from asr_server.core.transcript import Segment, Transcript
from asr_server.service.output.render import Shape, logprobs, token_usage, words
from asr_server.service.recordings.transcriber import Item, TextDelta, TranscriptionStarted
from asr_server.text import languages

# Proxies and Node's fetch give up on a silent connection; they do so after 60 s and more.
PING_S = 15.0
_PING = ": ping\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Events = AsyncGenerator[str | Transcript, None]


class TextEvent(str):
    """An event with text of the recording: the first one is what the reader waits for."""

    __slots__ = ()


# Ends of streams whose reader has left; the loop itself holds its tasks only weakly.
_closing: set[asyncio.Task[None]] = set()


def respond(request: Request, events: Events) -> StreamingResponse:
    """The answer that sends `events`; the transcript among them is for the request's log line."""
    return StreamingResponse(_watched(request, events), media_type="text/event-stream; charset=utf-8", headers=_HEADERS)


async def openai(items: AsyncGenerator[Item, None], shape: Shape) -> Events:
    """Deltas as they are decoded, one `transcript.text.done`, `[DONE]`. All deltas joined are the text of done.

    Log-probabilities come with `done`: a delta is whole characters, which may be less or more than whole tokens.
    """
    async with aclosing(items):
        async for item in items:
            if isinstance(item, TextDelta):
                yield TextEvent(frame({"type": "transcript.text.delta", "delta": item.text}))
            elif isinstance(item, Transcript):
                yield frame(_done(item, shape))
                yield item
    yield "data: [DONE]\n\n"


def _done(transcript: Transcript, shape: Shape) -> dict[str, Any]:
    code = languages.code(transcript.language)
    body = {
        "type": "transcript.text.done",
        "text": transcript.text,
        "languages": [{"code": code}] if code else [],
        "usage": token_usage(transcript),
    }
    body |= {"logprobs": logprobs(transcript.segments)} if shape.logprobs else {}
    return body | ({"words": words(transcript.words)} if shape.words else {})


async def native(items: AsyncGenerator[Item, None], shape: Shape) -> Events:
    """How long the recording says it is, if it does; one event for each finished span, in order; one for the whole;
    `done`."""
    index = 0
    async with aclosing(items):
        async for item in items:
            if isinstance(item, TranscriptionStarted) and item.claimed_s:
                yield frame({"duration": round(item.claimed_s, 3)})
            elif isinstance(item, Segment):
                chunk = _chunk(item.text, item.language, index, item.start_ms, item.end_ms, final=False)
                yield TextEvent(frame(chunk | ({"words": words(item.words)} if shape.words else {})))
                index += 1
            elif isinstance(item, Transcript):
                yield frame(_chunk(item.text, item.language, index, 0, item.duration_ms, final=True))
                yield item
    yield frame({"done": True})


def _chunk(text: str, language: str, index: int, start_ms: int, end_ms: int, *, final: bool) -> dict[str, Any]:
    return {
        "text": text,
        "language": language,
        "is_final": final,
        "chunk_index": index,
        "start": start_ms / 1000,
        "end": end_ms / 1000,
    }


def frame(content: dict[str, Any]) -> str:
    """One event."""
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


async def _watched(request: Request, events: Events) -> AsyncIterator[str]:
    """`events` with keep-alives between them, and an error event in place of what an error cuts off."""
    try:
        async with aclosing(_with_pings(events)) as frames:
            async for item in frames:
                if isinstance(item, Transcript):
                    request.state.log.update(log_fields(item))
                else:
                    _note_text(request, item)
                    yield item
    except (asyncio.CancelledError, GeneratorExit):
        request.state.outcome = Cancelled.code
        raise
    except AsrError as error:
        request.state.outcome = error.code
        yield frame(error_body(error))
    except Exception as error:  # the status is sent already: the client must hear of it here, the operator in the log
        request.state.outcome = AsrError.code
        logger.opt(exception=error).error("unexpected error", id=request.state.id)
        yield frame(internal_error_body())


def _note_text(request: Request, event: str) -> None:
    if isinstance(event, TextEvent) and not hasattr(request.state, "first_text_s"):
        request.state.first_text_s = time.perf_counter()


async def _with_pings(events: Events) -> AsyncGenerator[str | Transcript, None]:
    pending: asyncio.Task[str | Transcript] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({pending}, timeout=PING_S)
            if not done:
                yield _PING
                continue
            finished, pending = pending, None
            try:
                item = finished.result()
            except StopAsyncIteration:
                return
            yield item
    finally:
        # When a reader leaves, Starlette cancels this task anew at every wait until it is gone: the work must end in
        # order all the same, so it ends in a task of its own.
        closing = asyncio.ensure_future(_close(pending, events))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)
        await asyncio.shield(closing)


async def _close(pending: asyncio.Task[str | Transcript] | None, events: Events) -> None:
    if pending is not None:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
    await events.aclose()
