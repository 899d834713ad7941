"""The audio and the actions that a live client has sent and a server may still need. Pure: no I/O, no clock.

The session can go on at two places: where its server was when the connection broke, and, on any server, at its newest
continuation. No server needs again what lies before the continuation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from asr_server.live.machine.replay_buffer import ControlFrame, ReplayBuffer


@dataclass(frozen=True, slots=True)
class Continuation:
    """A place from which any server can go on with a session."""

    state: str  # opaque
    received_bytes: int  # the server needs the audio of the session from this byte on,
    actions: int  # and the actions after this many

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self | None:
        """Return the continuation in a message of the server; None where it has none."""
        stated = message.get("continuation")
        return cls(stated["state"], int(stated["received_bytes"]), int(stated["actions"])) if stated else None


@dataclass(slots=True, eq=False)
class Action(ControlFrame):
    """An action in its place."""

    number: int  # from 1, over all connections


class LiveInput:
    """The input of one session; at most `limit_bytes` of it are held, the newest. Bytes are counted as the server does:
    a position is also the server's count, since a session that has lost bytes does not go on."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: ReplayBuffer[Action] = ReplayBuffer()
        self._actions = 0

    @property
    def held_bytes(self) -> int:
        """Return an upper bound of what is held."""
        return self._buffer.held_bytes

    def add_audio(self, pcm: bytes) -> None:
        """Add the next audio, cut anywhere."""
        self._buffer.append(pcm)

    def add_action(self, text: str) -> Action:
        """Add an action after all audio so far."""
        self._actions += 1
        action = Action(self._buffer.end, text, self._actions)
        self._buffer.append_control(action)
        return action

    def take_back(self, action: Action) -> None:
        """The last action was not sent, and will not be."""
        self._buffer.remove([action])
        self._actions -= 1

    def next_frame(self) -> bytes | str | None:
        """Return the next frame for the present connection, which counts as sent from now on; None when all were
        sent."""
        return self._buffer.next_frame()

    def drop(self, continuation: Continuation | None) -> None:
        """Drop what lies before the newest continuation, and the oldest of the rest beyond the limit."""
        if continuation is not None:
            self._buffer.forget(continuation.received_bytes)
            self._buffer.remove([action for action in self._buffer.controls if action.number <= continuation.actions])
        self._buffer.keep_last(self._limit_bytes)

    def holds(self, received_bytes: int, actions: int | None) -> bool:
        """True if all audio after that many bytes is held, and all actions after the first `actions`, if that is known.

        Without a number of actions, those after the bytes held are held too: the oldest are dropped first.
        """
        missing = 0 if actions is None else self._actions - actions - len(self._after(actions))
        return self._buffer.start <= received_bytes and missing <= 0

    def go_on(self, received_bytes: int, actions: int | None) -> None:
        """Note that a new connection begins after that many bytes and actions, which must be held. Without a number of
        actions, those that were sent before the last of the bytes have arrived."""
        held = None if actions is None else len(self._buffer.controls) - len(self._after(actions))
        self._buffer.resume(received_bytes, held)

    def _after(self, actions: int) -> list[Action]:
        return [action for action in self._buffer.controls if action.number > actions]
