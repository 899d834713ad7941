"""Events in the middle of which things happen: silence, errors, a reader that leaves."""

import asyncio
import json
from types import SimpleNamespace

import anyio
import pytest

from asr_server.api.http import sse
from asr_server.core.errors import EngineOutOfMemory
from asr_server.core.transcript import Segment, Transcript
from asr_server.service.output.render import Shape
from asr_server.service.recordings.transcriber import TextDelta, TranscriptionStarted

SEGMENT = Segment(0, 900, "hello", "English", (1,), -0.1, 0.0)


@pytest.fixture
def request_():
    return SimpleNamespace(state=SimpleNamespace(id="r", log={}, outcome=None))


async def _items(*items, fault=None, closed=None):
    try:
        yield TranscriptionStarted(1.0)
        for item in items:
            yield item
        if fault is not None:
            raise fault
        yield Transcript("hello", "English", 1000, (SEGMENT,))
    finally:
        if closed is not None:
            closed.append(True)


async def _sent(request_, items, kind=sse.openai):
    return [event async for event in sse._watched(request_, kind(items, Shape()))]


async def test_a_late_error_is_an_event_with_its_code(request_):
    """After the first event an error can only be an event; the stream ends with it, without an end mark."""
    events = await _sent(request_, _items(TextDelta("hel"), fault=EngineOutOfMemory("no memory")))
    assert json.loads(events[-1][6:])["error"]["code"] == "engine_out_of_memory"
    assert len(events) == 2
    assert request_.state.outcome == "engine_out_of_memory"


async def test_a_fault_of_ours_says_nothing_of_its_inside(request_):
    """An unexpected error becomes `internal_error`, its text stays in the log."""
    events = await _sent(request_, _items(fault=ZeroDivisionError("secret")))
    assert json.loads(events[-1][6:])["error"]["code"] == "internal_error"
    assert "secret" not in events[-1]


async def test_silence_on_the_line_is_filled_with_comments(request_, monkeypatch):
    """While nothing comes, pings do, and nothing is lost."""
    monkeypatch.setattr(sse, "PING_S", 0.02)

    async def slow():
        yield TranscriptionStarted(1.0)
        await asyncio.sleep(0.2)
        yield TextDelta("hello")
        yield Transcript("hello", "English", 1000, (SEGMENT,))

    events = await _sent(request_, slow())
    assert events.count(": ping\n\n") >= 2
    assert [json.loads(e[6:])["type"] for e in events if e.startswith("data: {")] == [
        "transcript.text.delta",
        "transcript.text.done",
    ]


async def test_a_reader_that_leaves_closes_the_work(request_):
    """Closing the event stream closes the generator that does the work."""
    closed = []
    events = sse._watched(request_, sse.openai(_items(TextDelta("hello"), closed=closed), Shape()))
    assert "delta" in await anext(events)
    await events.aclose()
    assert closed == [True]


async def test_work_ends_in_order_although_its_reader_is_cancelled_again_and_again(request_):
    """As Starlette does it: a cancelled scope cancels at every wait, and the work's own end may have many of them."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work():
        try:
            yield TranscriptionStarted(1.0)
            yield TextDelta("hello")
            await asyncio.sleep(60)
        finally:
            for _ in range(3):
                await asyncio.sleep(0.01)
            ended.set()

    async def read():
        async for _ in sse._watched(request_, sse.openai(work(), Shape())):
            begun.set()

    async with anyio.create_task_group() as readers:
        readers.start_soon(read)
        await begun.wait()
        readers.cancel_scope.cancel()
    async with asyncio.timeout(5):
        await ended.wait()


async def test_openais_events_join_to_the_text_and_end_with_the_mark(request_):
    """Clients read until `[DONE]`: without it they would wait for more or report a broken stream."""
    *events, mark = await _sent(request_, _items(TextDelta("hel"), TextDelta("lo")))
    bodies = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [body["type"] for body in bodies] == ["transcript.text.delta"] * 2 + ["transcript.text.done"]
    assert "".join(body["delta"] for body in bodies[:-1]) == bodies[-1]["text"] == "hello"
    assert mark == "data: [DONE]\n\n"


async def test_our_own_events_number_the_spans(request_):
    """Segments are numbered, the whole comes last, and the log line gets its figures."""
    events = await _sent(request_, _items(SEGMENT, SEGMENT), sse.native)
    bodies = [json.loads(event[6:]) for event in events]
    assert bodies[0] == {"duration": 1.0}
    assert [b.get("chunk_index") for b in bodies[1:]] == [0, 1, 2, None]
    assert request_.state.log["audio_s"] == 1.0
