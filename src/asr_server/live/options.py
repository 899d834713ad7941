"""The options of a live session, the parts that features add to it, and the resources that all live sessions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.speech_detection import VoiceDetector
from asr_server.net.errors import Json
from asr_server.net.shared_bytes import SharedBytes
from asr_server.processes.caller_work import FairShares
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
class LiveSessionOptions:
    """The options with which a session begins."""

    rules: TurnConfig
    input_rate_hz: int = SAMPLE_RATE
    words: WordTimes = WordTimes.NONE  # how the words of finals get their times
    owner: str = ""  # the owner of the key, "" without keys
    place: Place | None = None  # a slot of the caller's quota, kept while the session waits for its client
    reopened: Literal["pause", "speech"] | None = None  # begins there, with audio of a lost session
    turn_events: bool = False  # notify the client when a turn has probably ended
    parts: tuple[MakePart, ...] = ()  # in the order in which they process a message


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that all sessions of the process share."""

    engines: Engines
    timeout_s: float  # limit of each answer of an engine
    end_of_turn: EndOfTurnEstimator | None = None  # None if the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    detector: VoiceDetector = field(default_factory=VoiceDetector)
    # The turns of sessions that send faster than real time, by priority: one for each slice of audio. Such sessions
    # together use at most half of the time.
    paces: Mapping[Priority, FairShares] = field(
        default_factory=lambda: {Priority.INTERACTIVE: FairShares(1, 1), Priority.BULK: FairShares(1, 1)}
    )


class SessionPart:
    """A feature's part of one session. Methods to override; these change nothing.

    All are called on the event loop and must return at once. `close` may be called more than once.
    """

    def hello(self) -> Json:
        """Return the fields of the part in the first message of a connection."""
        return {}

    def on_frame(self, frame: Frame) -> None:
        """Take the session's next audio, mono at 16 kHz. The array may be replaced later."""

    def shown(self, message: Message) -> Message | None:
        """Return the message to send instead of this one, or None to send nothing."""
        return message

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return a message that will be sent, with this part's additions."""
        return outgoing

    def close(self) -> None:
        """Stop all work: the session is over."""


# Makes the part of a session from its id and a function that sends a message at any time.
MakePart = Callable[[str, Callable[["PartMessage"], None]], SessionPart]
# Reads a feature's options from the query, and returns what makes its part, if it has one. Raises `AsrError`.
OpeningReader = Callable[["WebSocket", "Query"], MakePart | None]
