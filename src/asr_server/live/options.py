"""The options of a live session, the parts that features add to it, and the resources that all live sessions share.

Parts stand in a list, in the order in which a message passes them on its way to the client; the session knows no more
of a feature than its part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.speech_detection import VoiceDetector
from asr_server.net.shared_bytes import SharedBytes
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.actions import Query
    from asr_server.live.inference import Engines
    from asr_server.live.machine.events import TurnConfig
    from asr_server.live.machine.utterance import Frame
    from asr_server.live.outbox import Message, Outgoing, PartMessage
    from asr_server.live.speech_detection import EndOfTurnEstimator
    from asr_server.schedule.quota import Place


@dataclass(frozen=True, slots=True)
class Opening:
    """The options of a client of `WS /ws/transcribe`, as read so far."""

    query: Query
    parts: tuple[PartRequest, ...] = ()

    def with_part(self, part: PartRequest) -> Opening:
        """Return the same with one more part, which a message passes before the others."""
        return replace(self, parts=(part, *self.parts))


# A feature reads its options of the query and adds its part. Raises `AsrError`.
OpeningReader = Callable[["WebSocket", Opening], Opening]


@dataclass(frozen=True, slots=True)
class LiveSessionOptions:
    """The options with which a session begins."""

    rules: TurnConfig
    input_rate_hz: int = SAMPLE_RATE
    words: WordTimes = WordTimes.NONE  # how the words of finals get their times
    owner: str = ""  # the key's; "" where there are no keys
    place: Place | None = None  # in the quota of its caller, kept while the session waits for its client
    reopened: Literal["pause", "speech"] | None = None  # it begins there, with audio of a session that has gone
    turn_events: bool = False  # the client is told when a turn has probably ended
    parts: tuple[PartRequest, ...] = ()  # in the order in which a message passes them


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that all sessions of the process share."""

    engines: Engines
    timeout_s: float  # limit of each answer of an engine
    end_of_turn: EndOfTurnEstimator | None = None  # None where the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    detector: VoiceDetector = field(default_factory=VoiceDetector)
    # Who has one of these may process a slice of audio, of the sessions that send faster than one speaks, by their
    # priority. They leave half of the time to others.
    paces: Mapping[Priority, asyncio.Lock] = field(
        default_factory=lambda: {Priority.INTERACTIVE: asyncio.Lock(), Priority.BULK: asyncio.Lock()}
    )


Json = dict[str, Any]


class SessionPart:
    """A part of one session. Methods to override; these change nothing.

    All are called on the event loop and must return at once. `close` may be called more than once.
    """

    def hello(self) -> Json:
        """Return the fields of the part in the first message of a connection."""
        return {}

    def on_frame(self, frame: Frame) -> None:
        """Take the next audio that the session's clock counts, mono at 16 kHz. Its array may be replaced later."""

    def shown(self, message: Message) -> Message | None:
        """Return the message to send in place of this one, or None to send nothing."""
        return message

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return a message that all parts have let pass, with what this part adds to it."""
        return outgoing

    def close(self) -> None:
        """End what the part has under way: the session is over."""


@dataclass(frozen=True, slots=True)
class PartRequest:
    """A part that a session is to be opened with."""

    # Takes the id of the session, and what sends a message that the part makes at its own time.
    make: Callable[[str, Callable[[PartMessage], None]], SessionPart]
    check: Callable[[], None] = lambda: None  # raises an `AsrError` where the part is not available
