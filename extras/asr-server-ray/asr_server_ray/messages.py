"""The messages between the app and its engine replicas. Both run the same version, so objects are pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from asr_server.core.errors import AsrError
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignItem, Alignment, EngineInfo, Hypothesis, Tokens, Utterance
from asr_server.schedule.capacity import FreeCapacity

TOKEN_BYTES = 32

# The answers of a replica to one row: tokens if the row asks for them, then the result or its error.
Answer = Tokens | Hypothesis | Alignment | AsrError


@dataclass(frozen=True, slots=True, eq=False)
class RowCall:
    """One row for a replica."""

    number: int  # of this call, at this app
    item: Utterance | AlignItem
    model: str
    is_live: bool  # a speaker waits for it
    sender: str  # the app
    waiting_s: float  # seconds of audio that wait at the app

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
    """The address at which a replica takes rows."""

    host: str
    port: int
    token: bytes = field(repr=False)  # which has to be sent first, `TOKEN_BYTES` long


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """The figures that a replica publishes."""

    capacity: FreeCapacity = _NOTHING
    sessions: Mapping[str, int] = field(default_factory=dict)  # its live sessions, by the app that sends their rows
    waiting_s: float = 0.0  # seconds of audio in its queue
    engines: Mapping[str, EngineInfo] = field(default_factory=dict)  # by the names of the models
    address: Address | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """The plan and the figures of a replica, once its models are loaded."""

    plan: Plan
    stats: ReplicaStats
