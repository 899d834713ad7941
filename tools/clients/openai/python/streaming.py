"""Server-sent events as the client gives them out, and as they are on the line: items 8, 9, 10 and 12."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent
from world import WORDS, arguments, async_client, case, client, create, failure, recording


def _events(name: str = "spans", server: str = "main", **fields: Any) -> list[Any]:
    return list(create(client(server), recording(name), stream=True, **fields))


def _said(events: list[Any]) -> str:
    return "".join(event.delta for event in events[:-1])


@case(8, "stream-events")
def stream_events():
    *deltas, done = _events()
    assert len(deltas) > 6
    assert all(isinstance(event, TranscriptionTextDeltaEvent) for event in deltas)
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert done.type == "transcript.text.done"


@case(8, "stream-text")
def stream_text():
    events = _events()
    plain = create(file=recording("spans")).text
    assert WORDS in plain
    assert _said(events) == events[-1].text == plain


@case(8, "stream-early")
def stream_early():
    began = time.monotonic()
    times = [time.monotonic() - began for _ in create(client("slow"), stream=True)]
    assert times[0] < 0.6 * times[-1], f"first after {times[0]:.2f} s, all after {times[-1]:.2f} s"


@case(8, "stream-usage")
def stream_usage():
    # 1.109.1 has no field for usage here, and keeps it as an extra attribute: a dict.
    usage = _events()[-1].model_dump()["usage"]
    assert usage["type"] == "tokens"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 50


@case(8, "stream-logprobs")
def stream_logprobs():
    *deltas, done = _events("sample", include=["logprobs"])
    assert bytes(b for entry in done.logprobs for b in entry.bytes).decode().strip() == WORDS
    assert all(event.logprobs is None for event in deltas)
    assert _events("sample")[-1].logprobs is None


@case(8, "stream-silence")
def stream_silence():
    (done,) = _events("silence")
    assert (done.type, done.text) == ("transcript.text.done", "")


def _raw(server: str) -> tuple[Any, str]:
    with client(server).audio.transcriptions.with_streaming_response.create(**arguments(stream=True)) as answer:
        return answer.headers, b"".join(answer.iter_bytes()).decode()


@case(9, "raw-headers")
def raw_headers():
    headers, _ = _raw("main")
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers


@case(9, "raw-frames")
def raw_frames():
    _, text = _raw("main")
    *frames, end = text.split("\n\n")
    assert end == ""
    assert all(frame.startswith("data: ") and "\n" not in frame and "\r" not in frame for frame in frames)
    assert frames[-1] == "data: [DONE]"
    assert [json.loads(frame[6:])["type"] for frame in frames[:-1]].count("transcript.text.done") == 1


@case(9, "raw-pings")
def raw_pings():
    _, text = _raw("slow")
    assert "\n\n: ping\n\n" in text
    assert _events("sample", "slow")[-1].text == WORDS


@case(10, "stream-cut", aside="limited")
def stream_cut():
    stream = create(client("limited"), recording("held"), stream=True)
    assert next(stream).type == "transcript.text.delta"
    error = failure(lambda: list(stream))
    assert not isinstance(error, openai.APIConnectionError | openai.APIStatusError)
    assert (error.code, error.type, error.param) == ("deadline_exceeded", "server_error", None)


@case(12, "raw-response")
def raw_response():
    raw = client().audio.transcriptions.with_raw_response.create(**arguments(stream=True))
    events = list(raw.parse())
    assert _said(events) == events[-1].text == WORDS
    assert raw.headers["x-request-id"]


@case(12, "streaming-response")
def streaming_response():
    with client().audio.transcriptions.with_streaming_response.create(**arguments(stream=True)) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["text"] == WORDS


@case(12, "async")
async def plain_async():
    async with async_client() as at:
        assert (await at.audio.transcriptions.create(**arguments())).text == WORDS


@case(12, "async-stream")
async def stream_async():
    async with async_client() as at:
        events = [event async for event in await at.audio.transcriptions.create(**arguments(stream=True))]
    assert _said(events) == events[-1].text == WORDS


@case(12, "async-raw-response")
async def raw_response_async():
    async with async_client() as at:
        raw = await at.audio.transcriptions.with_raw_response.create(**arguments(stream=True))
        events = [event async for event in raw.parse()]
    assert _said(events) == events[-1].text == WORDS


@case(12, "async-streaming-response")
async def streaming_response_async():
    async with async_client() as at:
        asked = at.audio.transcriptions.with_streaming_response.create(**arguments(stream=True))
        async with asked as answer:
            lines = [line async for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2][6:])["text"] == WORDS
