"""How features take part in live sessions: each adds a `SessionPart`, and the session knows no more of them.

Parts stand in a list, in the order in which a message passes them on its way to the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asr_server.live.outbox import Message, Outgoing, PartMessage

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from asr_server.live.actions import Query
    from asr_server.live.machine.events import Action, Event, Samples
    from asr_server.live.machine.session import LiveMachine
    from asr_server.live.options import SessionBegin
    from asr_server.live.session import Connection, LiveSession

Json = dict[str, Any]


class SessionPart:
    """A part of one session. Methods to override; these change nothing.

    All are called on the event loop and must return at once. `close` may be called more than once.
    """

    can_move = False  # the client can go on with another server: `move_request` returns a message

    def has_issued(self, begin: SessionBegin) -> bool:
        """True if the client got this place from this part of this very session."""
        return False

    def hello(self, connection: Connection, *, is_resumed: bool) -> Json:
        """Return the fields of the part in the first message of a connection."""
        return {}

    def on_connect(self, machine: LiveMachine, *, is_resumed: bool) -> Iterable[PartMessage]:
        """Return the messages that a new connection gets after the texts that its client lacks."""
        return ()

    def on_samples(self, samples: Samples) -> None:
        """Take the next audio that the session's clock counts, mono at 16 kHz."""

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

    make: Callable[[LiveSession], SessionPart]
    check: Callable[[], None] = lambda: None  # raises an `AsrError` where the part is not available


@dataclass(frozen=True, slots=True)
class Opening:
    """What a client of `WS /ws/transcribe` asks for, as read so far."""

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
