"""A text to audio: item 17."""

from __future__ import annotations

import base64
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import openai
from world import async_client, case, check_refusal, client, create, failure

TEXT = "Hello there. How are you today?"
MAGIC = {"opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF"}
PCM_BYTES_PER_S = 2 * 24_000
_KNOWN = inspect.signature(openai.resources.audio.Speech.create).parameters


def _arguments(**fields: Any) -> dict[str, Any]:
    """Return the arguments of `create`. A field that this version has no parameter for goes into `extra_body`."""
    extra = {name: fields.pop(name) for name in set(fields) - set(_KNOWN)}
    return {"input": TEXT, "model": "tts-1", "voice": "alloy", **fields, **({"extra_body": extra} if extra else {})}


def _speak(**fields: Any) -> Any:
    return client().audio.speech.create(**_arguments(**fields))


@case(17, "speech-formats")
def formats():
    for name, magic in MAGIC.items():
        assert _speak(response_format=name).content.startswith(magic), name
    assert _is_mp3(_speak(response_format="mp3").content)
    samples = _speak(response_format="pcm").content
    assert 1 < len(samples) / PCM_BYTES_PER_S < 6
    assert _is_mp3(_speak().content)


def _is_mp3(content: bytes) -> bool:
    return content[:3] == b"ID3" or (content[0] == 0xFF and content[1] & 0xE6 == 0xE2)


@case(17, "speech-media-types")
def media_types():
    wanted = {"mp3": "mpeg", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav", "pcm": "pcm"}
    for name, kind in wanted.items():
        assert _speak(response_format=name).response.headers["content-type"] == f"audio/{kind}"


@case(17, "speech-speed")
def speed():
    usual, fast, slow = (len(_speak(response_format="pcm", speed=speed).content) for speed in (1.0, 2.0, 0.5))
    assert abs(fast / usual - 0.5) < 0.02
    assert abs(slow / usual - 2.0) < 0.04


@case(17, "speech-voices")
def voices():
    names = ("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer")
    spoken = {_speak(response_format="pcm", voice=name).content for name in (*names, "verse")}
    assert len(spoken) > 10


@case(17, "speech-voice-object")
def voice_object():
    named = _speak(response_format="pcm", voice="nova").content
    assert _speak(response_format="pcm", voice={"id": "nova"}).content == named != _speak(response_format="pcm").content


@case(17, "speech-instructions")
def instructions():
    plain, told = _speak(response_format="pcm"), _speak(response_format="pcm", instructions="Whisper.")
    assert told.content == plain.content
    assert told.response.headers["x-ignored"] == "instructions"
    assert "x-ignored" not in plain.response.headers


@case(17, "speech-streaming-response")
def streaming_response():
    text = f"{TEXT} " * 40
    whole = _speak(response_format="pcm", input=text).content
    with client().audio.speech.with_streaming_response.create(
        **_arguments(response_format="pcm", input=text, seed=1)
    ) as answer:
        pieces = list(answer.iter_bytes(4_096))
    assert b"".join(pieces) == whole
    assert len(pieces) > 10


@case(17, "speech-to-file")
def to_file():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.mp3"
        with client().audio.speech.with_streaming_response.create(**_arguments()) as answer:
            answer.stream_to_file(path)
        assert _is_mp3(path.read_bytes())


@case(17, "speech-async")
async def over_asyncio():
    answer = await async_client().audio.speech.create(**_arguments(response_format="pcm"))
    assert answer.content == _speak(response_format="pcm").content


@case(17, "speech-sse")
def events():
    with client().audio.speech.with_streaming_response.create(
        **_arguments(stream_format="sse", response_format="pcm")
    ) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        found = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: ")]
    *deltas, done = found
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    samples = b"".join(base64.b64decode(event["audio"]) for event in deltas)
    assert samples == _speak(response_format="pcm").content
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["input_tokens"] == len(TEXT)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@case(17, "speech-models")
def models():
    listed = client().models.list().data
    names = [model.id for model in listed if model.model_dump()["task"] == "text-to-speech"]
    assert {"tts-1", "tts-1-hd", "gpt-4o-mini-tts"} <= set(names)
    assert {_speak(model=name, response_format="pcm").content for name in names} == {
        _speak(response_format="pcm").content
    }


for _name, _fields in {
    "speech-no-voice": {"voice": "nobody"},
    "speech-no-text": {"input": " "},
    "speech-format": {"response_format": "m4a"},
    "speech-speed-zero": {"speed": 0},
    "speech-long": {"input": "a" * 20_001},
    "speech-model": {"model": "whisper-1"},
}.items():
    case(17, _name)(lambda name=_name, fields=_fields: check_refusal(name, failure(lambda: _speak(**fields))))


@case(17, "transcription-model")
def transcription_model():
    check_refusal("transcription-model", failure(lambda: create(model="tts-1")))
