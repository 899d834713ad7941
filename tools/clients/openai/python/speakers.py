"""Speakers: item 4."""

from __future__ import annotations

import base64
from typing import Any

from world import VERSION, WORDS, case, client, create, recording

# Older versions have no type for the answer, and take it for a plain one with more fields.
HAS_TYPES = VERSION >= (2, 6)


def _diarized(name: str, **fields: Any) -> dict[str, Any]:
    answer = create(file=recording(name), response_format="diarized_json", **fields)
    if HAS_TYPES:
        assert type(answer).__name__ == "TranscriptionDiarized"
    content = answer.model_dump()
    assert all(segment["end"] > segment["start"] >= 0 for segment in content["segments"])
    assert {segment["type"] for segment in content["segments"]} == {"transcript.text.segment"}
    return content


@case(4, "diarized")
def diarized():
    content = _diarized("spans")
    assert content["text"] == create(file=recording("spans")).text
    assert " ".join(segment["text"] for segment in content["segments"]) == content["text"]
    assert content["segments"][0]["speaker"] == "A"
    assert content["task"] == "transcribe"
    assert all(isinstance(segment["id"], str) for segment in content["segments"])


@case(4, "diarized-stream")
def diarized_stream():
    # Without a type for these events, strict validation refuses them.
    at = client(_strict_response_validation=HAS_TYPES)
    *said, done = list(create(at, recording("spans"), response_format="diarized_json", stream=True))
    kinds = [event.type.rpartition(".")[2] for event in said]
    deltas = said[: kinds.count("delta")]
    assert "".join(event.delta for event in deltas) == done.text
    assert said[len(deltas)].model_dump()["speaker"] == "A"
    assert kinds == ["delta"] * len(deltas) + ["segment"] * (len(said) - len(deltas))
    if HAS_TYPES:
        assert {type(event).__name__ for event in said[len(deltas) :]} == {"TranscriptionTextSegmentEvent"}


@case(4, "known-speaker")
def known_speaker():
    clip = recording("voice").read_bytes()
    assert len(clip) > 2**20
    reference = "data:audio/wav;base64," + base64.b64encode(clip).decode()
    content = _diarized("sample", known_speaker_names=["agent"], known_speaker_references=[reference])
    assert content["text"] == WORDS
    assert {segment["speaker"] for segment in content["segments"]} == {"agent"}
