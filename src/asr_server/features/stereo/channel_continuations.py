"""Continuations of a session with two channels, made of the continuations of the two sessions. Pure."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from asr_server.core.errors import InvalidValue
from asr_server.features.handover.continuation import MAX_FRAME_CHARS, MAX_STATE_CHARS, MOST, Message, parsed_frame

CHANNELS = 2
_BETWEEN = "~"


class _Shown(BaseModel):
    """The part of the open utterance of one channel that the client was shown, as in the frame of one session.

    The session of the channel checks it.
    """

    model_config = ConfigDict(strict=True)

    utterance: int = Field(default=0, ge=0, le=MOST)
    committed: str = ""
    end: float = Field(default=0.0, allow_inf_nan=False)


class _Frame(BaseModel):
    """The first frame of a client that continues a session with two channels. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)

    action: Literal["continue"]
    state: str = Field(max_length=CHANNELS * (MAX_STATE_CHARS + 1))
    channels: list[_Shown] = Field(default=[], max_length=CHANNELS)


def joined(first: Message, second: Message) -> Message:
    """The field `continuation`: from the first frame and the first action on that either channel needs."""
    whole_bytes = min(first["received_bytes"], second["received_bytes"]) // 2 * 2
    return {
        "state": _BETWEEN.join([first["state"], second["state"]]),
        "received_bytes": CHANNELS * whole_bytes,
        "actions": min(first["actions"], second["actions"]),
    }


def frames(text: str) -> list[str]:
    """The first frame of the session of each channel. Raises `MalformedBody` and `InvalidValue`."""
    frame = parsed_frame(_Frame, text, CHANNELS * MAX_FRAME_CHARS)
    states = frame.state.split(_BETWEEN)
    if len(states) != CHANNELS:
        raise InvalidValue("The state is not that of a session with two channels.", param="state")
    shown = [*frame.channels, *(CHANNELS - len(frame.channels)) * [_Shown()]]
    return [
        json.dumps(
            {
                **{"action": frame.action, "state": state, "committed": one.committed, "end": one.end},
                **{"utterance": own_number(one.utterance, channel)},
            }
        )
        for channel, (state, one) in enumerate(zip(states, shown, strict=True))
    ]


def own_number(number: int, channel: int) -> int:
    """The number of an utterance in the session of its channel; of a number of the other channel, the last before."""
    return (number + 1 - channel) // CHANNELS


def common_number(number: int, channel: int) -> int:
    """The number of an utterance of this channel among those of both."""
    return CHANNELS * number - 1 + channel
