"""A client's end of a live session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asr_server.live.inbox import RefusedAction
    from asr_server.live.machine.events import Event
    from asr_server.live.outbox import Outbox, Outgoing
    from asr_server.live.session import LiveSession


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """A client's end of a session, until it leaves or another connection takes the session over. `is_first`: no other
    had the session before."""

    session: LiveSession
    outbox: Outbox
    is_first: bool

    async def send(self, event: Event | RefusedAction) -> None:
        """One event from the client. Raises `SessionTaken`."""
        await self.session.accept(event, self.outbox)

    def messages(self) -> AsyncIterator[Outgoing]:
        """What to send, until the session ends; then the error that ended it is raised, if one did."""
        return self.outbox.messages()
