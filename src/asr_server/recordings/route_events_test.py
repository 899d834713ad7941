"""Events in the middle of which things happen: silence, errors, a reader that leaves."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from asr_server.core.errors import EngineOutOfMemory
from asr_server.core.transcript import Segment, Transcript
from asr_server.net import event_stream
from asr_server.recordings.pipeline import Finished, Started, TextDelta
from asr_server.recordings.requests import TranscriptionRequest
from asr_server.recordings.route import OpenAiFrames

FINISHED = Finished(Transcript("hello", "English", 1000, (Segment(0, 900, "hello", "English", (1,), -0.1, 0.0),)))


async def _sent(work):
    """Return the state of the request, the events, and the bodies of all events that have one."""
    state = SimpleNamespace(id="r", log={}, outcome=None)
    request = SimpleNamespace(state=state, receive=lambda: asyncio.Event().wait())
    response = await event_stream.respond(request, work, OpenAiFrames(TranscriptionRequest()))
    events = [event async for event in response.body_iterator]
    return state, events, [json.loads(event[6:]) for event in events if event.startswith("data: {")]


@pytest.mark.parametrize(
    ("fault", "code"),
    [(EngineOutOfMemory("no memory"), "engine_out_of_memory"), (ZeroDivisionError("secret"), "internal_error")],
)
async def test_a_late_error_is_an_event_with_its_code(fault, code):
    """The stream ends with it, without an end mark. An unexpected error says nothing of its inside."""

    async def work(emit):
        await emit(Started(1.0))
        await emit(TextDelta("hel"))
        raise fault

    state, events, bodies = await _sent(work)
    assert [body.get("error", {}).get("code") for body in bodies] == [None, code]
    assert (len(events), state.outcome) == (2, code)
    assert "secret" not in events[-1]


async def test_silence_on_the_line_is_filled_with_comments(monkeypatch):
    """While nothing comes, pings do, and nothing is lost."""
    monkeypatch.setattr(event_stream, "PING_S", 0.02)

    async def slow(emit):
        await emit(Started(1.0))
        await asyncio.sleep(0.2)
        await emit(TextDelta("hello"))
        await emit(FINISHED)

    _, events, bodies = await _sent(slow)
    assert events.count(": ping\n\n") >= 2
    assert [body["type"] for body in bodies] == ["transcript.text.delta", "transcript.text.done"]
