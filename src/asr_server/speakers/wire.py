"""Messages between the server and the process that tells speakers apart: a header, a JSON object, numbers.

Each request has one answer, in order. The numbers are float32: samples in requests, voice vectors in answers.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asr_server.speakers.turns import Diarization, Turn, VoicePrint

HEADER = struct.Struct("<II")  # bytes of JSON, bytes of numbers
# A block of samples is 2 s. Two hours in which the speaker changes 30 times a second have 216,000 turns, 8 MB.
MAX_JSON_BYTES, MAX_NUMBER_BYTES = 16 * 2**20, 8 * 2**20

Action = Literal["start", "push", "finish"]


@dataclass(frozen=True, slots=True)
class SpeakerRequest:
    """`analysis`: which recording or session. `live`: with start. `at_least`, `at_most`: with finish, the number of
    speakers. `dropped`: the analyses that are not needed any more."""

    action: Action
    analysis: int = 0
    live: bool = False
    at_least: int = 1
    at_most: int = 1
    dropped: tuple[int, ...] = ()


def packed(content: dict[str, Any], numbers: NDArray[np.float32] | None = None) -> bytes:
    """One message. Raises ValueError if it is over the limits."""
    text = json.dumps(content, separators=(",", ":")).encode()
    raw = b"" if numbers is None else np.ascontiguousarray(numbers, np.float32).tobytes()
    return HEADER.pack(*_checked(len(text), len(raw))) + text + raw


def sizes(header: bytes) -> tuple[int, int]:
    """The sizes of the two parts. Raises ValueError if they are over the limits."""
    return _checked(*HEADER.unpack(header))


def _checked(text_bytes: int, number_bytes: int) -> tuple[int, int]:
    if text_bytes > MAX_JSON_BYTES or number_bytes > MAX_NUMBER_BYTES:
        raise ValueError(f"a message of {text_bytes} and {number_bytes} bytes")
    return text_bytes, number_bytes


def unpacked(text: bytes, raw: bytes) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """The parts of a message."""
    return json.loads(text), np.frombuffer(raw, np.float32)


def turns_message(changed: tuple[Turn, ...], settled_ms: int, prints: Mapping[int, VoicePrint] | None = None) -> bytes:
    """The answer to push of a live session. `prints`: those of all speakers, if any has changed."""
    content = {"turns": _listed(changed), "settled_ms": settled_ms}
    if prints is None:
        return packed(content)
    return packed({**content, "voices": list(prints)}, np.array(list(prints.values()), np.float32))


def voice_prints(content: dict[str, Any], numbers: NDArray[np.float32]) -> dict[int, VoicePrint] | None:
    """The `prints` of `turns_message`."""
    if (speakers := content.get("voices")) is None:
        return None
    return dict(zip(speakers, numbers.reshape(len(speakers), -1) if speakers else (), strict=True))


def diarization_message(found: Diarization) -> bytes:
    """The answer to finish."""
    content = {"turns": _listed(found.turns), "speakers": len(found.voice_prints)}
    return packed(content, np.array(found.voice_prints, np.float32))


def diarization(content: dict[str, Any], numbers: NDArray[np.float32]) -> Diarization:
    """What `diarization_message` says."""
    prints = numbers.reshape(content["speakers"], -1) if content["speakers"] else ()
    return Diarization(turns(content), tuple(prints))


def turns(content: dict[str, Any]) -> tuple[Turn, ...]:
    """The turns of a message."""
    return tuple(Turn(*turn) for turn in content["turns"])


def _listed(said: tuple[Turn, ...]) -> list[tuple[float, ...]]:
    return [(turn.speaker, turn.start_ms, turn.end_ms, round(turn.confidence, 3)) for turn in said]
