"""Messages between the server and the process that distinguishes speakers.

A request has an `action` and the number of its `stream`, which is a recording or a session. A start also has `live`,
True for a session; a finish has `at_least` and `at_most`, the limits for the number of speakers.
The data are float32: samples in requests, voice vectors in answers. Two hours in which the speaker changes 30 times a
second have 216,000 turns, 8 MB of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from asr_server.features.speakers.diarization.turns import Turn, VoicePrint
from asr_server.processes import messages
from asr_server.processes.messages import Message

Action = Literal["start", "push", "finish"]


def answer(turns: Sequence[Turn], voices: Mapping[int, VoicePrint] | None = None, settled_ms: int = 0) -> bytes:
    """Return the answer to a push or finish. `voices`: the voices of all speakers, or None if none has changed.

    Raises ValueError if the answer exceeds the limits.
    """
    listed = [(turn.speaker, turn.start_ms, turn.end_ms) for turn in turns]
    content = {"turns": listed, "voices": None if voices is None else list(voices), "settled_ms": settled_ms}
    return messages.packed(content, np.array(list((voices or {}).values()), np.float32).tobytes())


def turns(answer: Message) -> tuple[Turn, ...]:
    return tuple(Turn(*turn) for turn in answer.content["turns"])


def voices(answer: Message) -> dict[int, VoicePrint] | None:
    if (speakers := answer.content["voices"]) is None:
        return None
    vectors = np.frombuffer(answer.data, np.float32).reshape(len(speakers), -1) if speakers else ()
    return dict(zip(speakers, vectors, strict=True))
