"""The options of a live session, and the resources that all live sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from asr_server.core.audio import SAMPLE_RATE
from asr_server.net.shared_bytes import SharedBytes
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.actions import Query
    from asr_server.live.end_of_turn import EndOfTurnEstimator
    from asr_server.live.inference import Engines
    from asr_server.live.machine.events import TurnConfig
    from asr_server.live.parts import PartRequest
    from asr_server.schedule.quota import Place


@dataclass(frozen=True, slots=True)
class SessionBegin:
    """A place in a session from where another one goes on: it gets the audio from byte `received_bytes` on, and the
    client's actions after the first `actions`."""

    session_id: str
    issuer: str  # names the session object that issued it, in one process
    utterances: int = 0  # that are finished
    samples: int = 0  # the position in the session's time, at 16 kHz
    received_bytes: int = 0
    actions: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The options of a client of `WS /ws/transcribe`, as read so far."""

    query: Query
    begin: SessionBegin | None = None  # where a session of another server goes on
    configured: Query | None = None  # in place of the query's language, hotwords and endpointing
    parts: tuple[PartRequest, ...] = ()

    def with_part(self, part: PartRequest) -> Opening:
        """Return the same with one more part, which a message passes before the others."""
        return replace(self, parts=(part, *self.parts))


# A feature reads its options of the query, and perhaps the first frames of the socket, and adds its part. Raises
# `AsrError`, and `WebSocketDisconnect` if the client leaves meanwhile.
OpeningReader = Callable[["WebSocket", Opening], Awaitable[Opening]]


@dataclass(frozen=True, slots=True)
class LiveSessionOptions:
    """How a session begins."""

    rules: TurnConfig
    input_rate_hz: int = SAMPLE_RATE
    words: WordTimes = WordTimes.NONE  # how the words of finals get their times
    owner: str = ""  # the key's; "" where there are no keys
    place: Place | None = None  # in the quota of its caller, kept while the session waits for its client
    begin: SessionBegin | None = None  # where it goes on; None for a new one
    began_s: float | None = None  # when its audio began, by the monotonic clock, where that was before the session
    turn_events: bool = False  # the client is told when a turn has probably ended
    asked_rules: TurnConfig | None = None  # as the query asks; None: those of `rules`, which a client may have changed
    parts: tuple[PartRequest, ...] = ()  # in the order in which a message passes them


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that all sessions of the process share."""

    engines: Engines
    timeout_s: float  # limit of each answer of an engine
    end_of_turn: EndOfTurnEstimator | None = None  # None where the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    # The thread of voice detection.
    detection: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "voice-detection"))
    # Who has one of these may process a slice of audio, of the sessions that send faster than one speaks, by their
    # priority. They leave half of the time to others.
    paces: Mapping[Priority, asyncio.Lock] = field(
        default_factory=lambda: {Priority.INTERACTIVE: asyncio.Lock(), Priority.BULK: asyncio.Lock()}
    )
