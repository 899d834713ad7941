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
FRAMES = OpenAiFrames(TranscriptionRequest())


@pytest.fixture
def request_():
    state = SimpleNamespace(id="r", log={}, outcome=None)
    return SimpleNamespace(state=state, receive=lambda: asyncio.Event().wait())


async def _sent(request_, work):
    """Return the events, and the bodies of those that have one."""
    response = await event_stream.respond(request_, work, FRAMES)
    events = [event async for event in response.body_iterator]
    return events, [json.loads(event[6:]) for event in events if event.startswith("data: {")]


@pytest.mark.parametrize(
    ("fault", "code"),
    [(EngineOutOfMemory("no memory"), "engine_out_of_memory"), (ZeroDivisionError("secret"), "internal_error")],
)
async def test_a_late_error_is_an_event_with_its_code(request_, fault, code):
    """The stream ends with it, without an end mark. An unexpected error says nothing of its inside."""

    async def work(emit):
        await emit(Started(1.0))
        await emit(TextDelta("hel"))
        raise fault

    events, bodies = await _sent(request_, work)
    assert [body.get("error", {}).get("code") for body in bodies] == [None, code]
    assert (len(events), request_.state.outcome) == (2, code)
    assert "secret" not in events[-1]


async def test_silence_on_the_line_is_filled_with_comments(request_, monkeypatch):
    """While nothing comes, pings do, and nothing is lost."""
    monkeypatch.setattr(event_stream, "PING_S", 0.02)

    async def slow(emit):
        await emit(Started(1.0))
        await asyncio.sleep(0.2)
        await emit(TextDelta("hello"))
        await emit(FINISHED)

    events, bodies = await _sent(request_, slow)
    assert events.count(": ping\n\n") >= 2
    assert [body["type"] for body in bodies] == ["transcript.text.delta", "transcript.text.done"]
