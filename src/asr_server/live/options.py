"""The options of a live session, the parts that features add to it, and the resources that all live sessions share.

Parts stand in a list, in the order in which a message passes them on its way to the client; the session knows no more
of a feature than its part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from asr_server.core.audio import SAMPLE_RATE
from asr_server.net.shared_bytes import SharedBytes
from asr_server.recordings.requests import WordTimes
from asr_server.schedule.job import Priority

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.actions import Query
    from asr_server.live.inference import Engines
    from asr_server.live.machine.events import Action, Event, TurnConfig
    from asr_server.live.machine.session import LiveMachine
    from asr_server.live.machine.utterance import Frame
    from asr_server.live.outbox import Message, Outgoing, PartMessage
    from asr_server.live.speech_detection import EndOfTurnEstimator, VoiceDetector
    from asr_server.schedule.quota import Place


@dataclass(frozen=True, slots=True)
class SessionBegin:
    """A place in a session from where another one goes on."""

    session_id: str
    issuer: str  # names the session object that issued it, in one process
    utterances: int = 0  # that are finished
    samples: int = 0  # the position in the session's time, at 16 kHz
    received_bytes: int = 0  # it gets the audio from this byte on
    actions: int = 0  # and the client's actions after this many
    in_speech: bool = False  # an utterance ended there in the middle of speech


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
    """The options with which a session begins."""

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


def _voice_detector() -> VoiceDetector:
    # A gateway imports this module, and no numpy.
    from asr_server.live.speech_detection import VoiceDetector

    return VoiceDetector()


@dataclass(frozen=True, slots=True)
class Shared:
    """The resources that all sessions of the process share."""

    engines: Engines
    timeout_s: float  # limit of each answer of an engine
    end_of_turn: EndOfTurnEstimator | None = None  # None where the end of a turn is not estimated
    memory: SharedBytes = field(default_factory=SharedBytes)
    detector: VoiceDetector = field(default_factory=_voice_detector)
    # Who has one of these may process a slice of audio, of the sessions that send faster than one speaks, by their
    # priority. They leave half of the time to others.
    paces: Mapping[Priority, asyncio.Lock] = field(
        default_factory=lambda: {Priority.INTERACTIVE: asyncio.Lock(), Priority.BULK: asyncio.Lock()}
    )


Json = dict[str, Any]


class PartSession(Protocol):
    """A session, as its parts see it."""

    id: str
    input_rate_hz: int
    begin: SessionBegin  # what came before its own first utterance and sample
    asked_rules: TurnConfig  # that the client's query asks for
    is_continued: bool  # it was with another server before
    received_actions: int  # from the client, so far

    def send(self, message: PartMessage) -> None:
        """Send a message that a part makes at its own time."""


class SessionPart:
    """A part of one session. Methods to override; these change nothing.

    All are called on the event loop and must return at once. `close` may be called more than once.
    """

    can_move = False  # the client can go on with another server: `move_request` returns a message

    def has_issued(self, issuer: str) -> bool:
        """True if it is this part that gave the client a `SessionBegin` with this issuer."""
        return False

    def hello(self, session: PartSession, *, is_first: bool, is_resumed: bool) -> Json:
        """Return the fields of the part in the first message of a connection.

        `is_first`: no other connection had the session; `is_resumed`: the client names a session, of any server.
        """
        return {}

    def on_connect(self, machine: LiveMachine, *, is_resumed: bool) -> Iterable[PartMessage]:
        """Return the messages that a new connection gets after the texts that its client lacks."""
        return ()

    def on_frame(self, frame: Frame) -> None:
        """Take the next audio that the session's clock counts, mono at 16 kHz. Its array may be replaced later."""

    def on_processed(
        self, actions: Sequence[Action], event: Event | None, machine: LiveMachine, *, counted: bool
    ) -> PartMessage | None:
        """Return a message to send now that the machine has processed an event and its actions were performed.

        `event` is None for an action that was refused; `counted`: it was an action of the client's.
        """
        return None

    def shown(self, message: Message) -> Message | None:
        """Return the message to send in place of this one, or None to send nothing."""
        return message

    def completed(self, outgoing: Outgoing) -> Outgoing:
        """Return a message that all parts have let pass, with what this part adds to it."""
        return outgoing

    def preceding(self) -> PartMessage | None:
        """Return a message that must be sent before the one that was just completed."""
        return None

    def on_wire(self, content: Json) -> Json:
        """Return the message of the wire that the client gets for this one of the machine's figures."""
        return content

    def move_request(self, machine: LiveMachine, within_s: float) -> PartMessage | None:
        """Return the message that asks the client to go on with another server within that time."""
        return None

    def close(self) -> None:
        """End what the part has under way: the session is over."""


@dataclass(frozen=True, slots=True)
class PartRequest:
    """A part that a session is to be opened with."""

    make: Callable[[PartSession], SessionPart]
    check: Callable[[], None] = lambda: None  # raises an `AsrError` where the part is not available
