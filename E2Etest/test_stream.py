"""Server-sent events: OpenAI's through its own client, and ours, byte by byte."""

import json

import httpx
import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent

from E2Etest import recordings

pytestmark = pytest.mark.integration
URL = "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def three(sample):
    """The sample three times with long pauses between: three spans."""
    pcm = recordings.samples()
    pause = np.zeros(16_000 * 5, np.int16)
    return recordings.wav(np.concatenate([pcm, pause, pcm, pause, pcm]))


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.base}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def _events(server, path, audio, **fields):
    data = {"model": "demo", **fields}
    with server.client.stream("POST", path, files={"file": ("a.wav", audio)}, data=data) as answer:
        raw = "".join(answer.iter_text())
    return answer, raw


def test_deltas_only_grow_and_add_up(client, server, three):
    """Every event is of its class, exactly one is done, joined deltas are its text and the text without streaming."""
    events = list(client.audio.transcriptions.create(file=three, model="whisper-1", stream=True))
    assert isinstance(events[-1], TranscriptionTextDoneEvent)
    deltas = events[:-1]
    assert len(deltas) > 6
    assert all(isinstance(event, TranscriptionTextDeltaEvent) for event in deltas)
    assert "".join(event.delta for event in deltas) == events[-1].text
    assert events[-1].text == server.transcribe(three).json()["text"]
    usage = events[-1].usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 100


def test_the_bytes_are_what_clients_can_read(server, three):
    """The media type, no cache, a blank line after every event, no ids, and the end mark."""
    answer, raw = _events(server, URL, three, stream="true")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert raw.endswith("data: [DONE]\n\n")
    for event in raw.removesuffix("\n\n").split("\n\n"):
        assert event.startswith((": ", "data: "))
        assert "\n" not in event


def test_silence_is_only_done(server):
    """Nothing said: no delta, one done with an empty text."""
    _, raw = _events(server, URL, recordings.wav(np.zeros(32_000, np.int16)), stream="true")
    first, *rest = raw.strip().split("\n\n")
    done = json.loads(first[6:])
    assert (done["type"], done["text"], done["languages"]) == ("transcript.text.done", "", [])
    assert rest == ["data: [DONE]"]


def test_our_own_events_come_span_by_span(server, three):
    """One event for each finished span in order, then the whole, then done."""
    _, raw = _events(server, f"{URL}/stream", three)
    *spans, whole, done = [json.loads(event[6:]) for event in raw.strip().split("\n\n")]
    assert done == {"done": True}
    assert [span["chunk_index"] for span in spans] == [0, 1, 2]
    assert [span["start"] for span in spans] == sorted(span["start"] for span in spans)
    assert not any(span["is_final"] for span in spans)
    assert whole["is_final"] is True
    assert whole["text"] == " ".join(span["text"] for span in spans) == server.transcribe(three).json()["text"]


@pytest.mark.parametrize("path", [URL, f"{URL}/stream"])
def test_what_is_wrong_with_a_recording_is_a_status(server, path):
    """Bad audio, a bad field, an unknown model: refused before the first event, as without streaming."""
    for audio, fields, status, code in (
        (b"no audio" * 100, {}, 400, "invalid_audio"),
        (recordings.sample()[0], {"language": "is"}, 400, "unsupported_language"),
        (recordings.sample()[0], {"model": "nobody"}, 404, "model_not_found"),
    ):
        data = {"model": "demo", "stream": "true", **fields}
        answer = server.client.post(path, files={"file": ("a.wav", audio)}, data=data)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_a_reader_that_leaves_frees_the_work(server, three):
    """Closing the connection after the first event takes the rest out of the queue and the batch."""
    for _ in range(5):
        data = {"model": "demo", "stream": "true"}
        with httpx.stream("POST", server.base + URL, files={"file": ("a.wav", three)}, data=data) as answer:
            next(answer.iter_bytes())
    health = server.wait_for(lambda h: h["queue"]["audio_held_s"] == 0 and h["queue"]["running"] == 0)
    assert health["queue"]["interactive"] == 0
    assert server.transcribe(three).status_code == 200


async def test_the_async_client_streams(server, sample):
    """The same over asyncio, through the raw response as well."""
    async with openai.AsyncOpenAI(base_url=f"{server.base}/v1", api_key="none") as client:
        stream = await client.audio.transcriptions.create(file=sample[0], model="whisper-1", stream=True)
        events = [event async for event in stream]
    assert events[-1].text == sample[1]
