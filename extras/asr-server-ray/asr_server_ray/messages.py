"""What the app and its engine replicas send each other. Both run the same version, so objects are pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asr_server.core.errors import AsrError
from asr_server.engine.plan import Plan
from asr_server.engine.protocol import AlignItem, Alignment, EngineInfo, Hypothesis, Tokens, Utterance
from asr_server.schedule.capacity import FreeCapacity

TOKEN_BYTES = 32

# What a replica answers to one row: tokens, where the row asks for them, then the result or its error.
Answer = Tokens | Hypothesis | Alignment | AsrError


@dataclass(frozen=True, slots=True, eq=False)
class RowCall:
    """One row for a replica. `number`: of this call, at this app. `is_live`: a speaker waits for it. `sender`: the app,
    and `waiting_s`: the seconds of audio that wait there."""

    number: int
    item: Utterance | AlignItem
    model: str
    is_live: bool
    sender: str
    waiting_s: float

    @property
    def stream(self) -> str:
        """The live session of the row, "" if it is of none. Utterances of a session have keys of their own."""
        item = self.item
        return (item.session or "").rpartition(":")[0] if isinstance(item, Utterance) else ""


_NOTHING = FreeCapacity(
    free_streams=0,
    streams=0,
    streams_measured=False,
    stream_cost=0.0,
    speech_share=1.0,
    audio_s_per_s=0.0,
    free_audio_s_per_s=0.0,
    audio_measured=False,
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica takes rows. `token`: what it is sent first, `TOKEN_BYTES` long."""

    host: str
    port: int
    token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What a replica publishes. `sessions`: the live sessions that it has, by the app that sends their rows.
    `waiting_s`: seconds of audio in its queue. `engines`: by the names of the models."""

    capacity: FreeCapacity = _NOTHING
    sessions: Mapping[str, int] = field(default_factory=dict)
    waiting_s: float = 0.0
    engines: Mapping[str, EngineInfo] = field(default_factory=dict)
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """What a replica runs, once its models are loaded."""

    plan: Plan
    stats: ReplicaStats
