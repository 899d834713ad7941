"""How features take part in live sessions: each adds a `SessionPart`, and the session knows no more of them.

Parts stand in a list, in the order in which a message passes them on its way to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from asr_server.live.outbox import Message, Outgoing, PartMessage

if TYPE_CHECKING:
    from asr_server.live.machine.events import Action, Event, Samples, TurnConfig
    from asr_server.live.machine.session import LiveMachine

Json = dict[str, Any]


class PartSession(Protocol):
    """A session, as its parts see it."""

    id: str
    input_rate_hz: int
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

    make: Callable[[PartSession], SessionPart]
    check: Callable[[], None] = lambda: None  # raises an `AsrError` where the part is not available
