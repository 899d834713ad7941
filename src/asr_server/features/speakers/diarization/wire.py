"""Messages between the server and the process that distinguishes speakers.

The data are float32: samples in requests, voice vectors in answers. Two hours in which the speaker changes 30 times a
second have 216,000 turns, 8 MB of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asr_server.features.speakers.diarization.turns import Diarization, Turn, VoicePrint
from asr_server.processes import messages

Action = Literal["start", "push", "finish"]


@dataclass(frozen=True, slots=True)
class SpeakerRequest:
    """A request to the process."""

    action: Action
    analysis: int = 0  # which recording or session
    live: bool = False  # with start: it is a session
    at_least: int = 1  # with finish: the number of speakers
    at_most: int = 1  # with finish: the number of speakers


def packed(content: dict[str, Any], numbers: NDArray[np.float32]) -> bytes:
    """Pack a message. Raises ValueError if it is over the limits."""
    return messages.packed(content, numbers.tobytes())


def turns_message(changed: tuple[Turn, ...], settled_ms: int, prints: Mapping[int, VoicePrint] | None = None) -> bytes:
    """Return the answer to push of a live session. `prints`: those of all speakers, if any has changed."""
    content = {"turns": _listed(changed), "settled_ms": settled_ms}
    if prints is None:
        return messages.packed(content)
    return packed({**content, "voices": list(prints)}, np.array(list(prints.values()), np.float32))


def voice_prints(content: dict[str, Any], data: bytes) -> dict[int, VoicePrint] | None:
    """Return the `prints` of `turns_message`."""
    if (speakers := content.get("voices")) is None:
        return None
    return dict(zip(speakers, _vectors(data, len(speakers)), strict=True))


def diarization_message(found: Diarization) -> bytes:
    """Return the answer to finish."""
    content = {"turns": _listed(found.turns), "speakers": len(found.voice_prints)}
    return packed(content, np.array(found.voice_prints, np.float32))


def diarization(content: dict[str, Any], data: bytes) -> Diarization:
    """Read what `diarization_message` has written."""
    return Diarization(turns(content), _vectors(data, content["speakers"]))


def _vectors(data: bytes, count: int) -> tuple[NDArray[np.float32], ...]:
    return tuple(np.frombuffer(data, np.float32).reshape(count, -1)) if count else ()


def turns(content: dict[str, Any]) -> tuple[Turn, ...]:
    """Return the turns of a message."""
    return tuple(Turn(*turn) for turn in content["turns"])


def _listed(said: tuple[Turn, ...]) -> list[tuple[float, ...]]:
    return [(turn.speaker, turn.start_ms, turn.end_ms, round(turn.confidence, 3)) for turn in said]
