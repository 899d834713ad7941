"""Audio and control frames of a live session that may have to be sent again after a cut. Pure: no I/O, no clock.

The gateway uses it towards its worker and the Python client towards its server. docs/use/websocket.md specifies the
same rules for any client ("Resuming: the client's buffer").

A position is a count of bytes of audio since the session began. The peer says how many bytes it has received; the bytes
that it lacks are sent again, and the control frames between them in their places. A session can go on at two places:
where its server was when the connection broke, and, on any server, at its newest continuation. No server needs again
what lies before the continuation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

_PIECE_BYTES = 256 * 1024  # of audio sent in one frame
_CONTROL_BYTES = 32 * 1024  # what a control frame counts besides its text: far more than it is, so that few are held


@dataclass(slots=True, eq=False)
class ControlFrame:
    """A text frame and its place in the audio."""

    position: int  # it is behind all audio before this
    text: str


Control = TypeVar("Control", bound=ControlFrame)


class ReplayBuffer(Generic[Control]):
    """The input of one sender: `[start, end)` of the audio is held, and control frames in order.

    `next_frame` gives everything once, in order; after `resume` it begins again where the peer is. `begin`: the
    position of the first byte.
    """

    def __init__(self, begin: int = 0) -> None:
        self._audio = bytearray()  # the bytes [start, end)
        self._start = self._end = begin
        self._cursor = begin  # the present connection has been given everything before this position
        self._count_base = 0  # the position at which the peer's count of bytes begins
        self._controls: list[Control] = []
        # Of each control frame given to the present connection: how many bytes the peer has counted when it arrives.
        self._counts: list[int] = []
        self._lost_bytes = 0

    @property
    def start(self) -> int:
        """The position of the first byte held."""
        return self._start

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self._end

    @property
    def held_bytes(self) -> int:
        """An upper bound of what is held: audio and control frames."""
        return len(self._audio) + sum(_CONTROL_BYTES + len(control.text) for control in self._controls)

    @property
    def unsent_bytes(self) -> int:
        """The bytes held that the present connection has not been given."""
        return self._end - self._cursor + _CONTROL_BYTES * (len(self._controls) - len(self._counts))

    @property
    def lost_bytes(self) -> int:
        """Bytes that the peer has not received and that are no longer held, in all. A caller must report them."""
        return self._lost_bytes

    @property
    def controls(self) -> list[Control]:
        """The control frames held, in order."""
        return list(self._controls)

    # -- to be sent --------------------------------------------------------------------------------------------------

    def append(self, pcm: bytes) -> None:
        """The next audio, cut anywhere, also inside a sample."""
        self._audio += pcm
        self._end += len(pcm)

    def append_control(self, control: Control) -> None:
        """The next control frame; its position is `end`."""
        assert control.position == self._end, "a control frame belongs behind all audio appended before it"
        self._controls.append(control)

    def next_frame(self) -> bytes | str | None:
        """The next frame to send, which counts as sent from now on; None when everything has been sent."""
        control = self._controls[len(self._counts)] if len(self._counts) < len(self._controls) else None
        if control is not None and control.position <= self._cursor:
            self._counts.append(control.position - self._count_base)
            return control.text
        stop = min(self._end if control is None else control.position, self._cursor + _PIECE_BYTES)
        if stop == self._cursor:
            return None
        piece = bytes(self._audio[self._cursor - self._start : stop - self._start])
        self._cursor = stop
        return piece

    # -- a new connection --------------------------------------------------------------------------------------------

    def resume(self, received_bytes: int, received_controls: int | None = None) -> int:
        """The peer that is reached has received so many bytes. Returns how many bytes are lost to it.

        `received_controls`: how many of the control frames held it has received, where it says so. Otherwise a control
        frame behind a byte that did not arrive is sent again, and one behind the last byte that arrived counts as
        received: whether it was cannot be told from the bytes.
        """
        position = self._count_base + received_bytes
        lost = max(0, self._start - position)
        self._lost_bytes += lost
        self._cursor = min(max(self._start, position), self._cursor)
        # The peer goes on counting from what it has; lost bytes are in positions and not in its count.
        self._count_base = self._cursor - received_bytes
        if received_controls is None:
            self._counts = [count for count in self._counts if count <= received_bytes]
        else:
            self._counts = [each.position - self._count_base for each in self._controls[:received_controls]]
        return lost

    # -- to be dropped -----------------------------------------------------------------------------------------------

    def forget(self, position: int) -> None:
        """Audio before this position will not be asked for again. Only what was sent is dropped."""
        self._drop_audio(min(position, self._cursor))

    def remove(self, controls: Collection[Control]) -> None:
        """These control frames will not be asked for again."""
        sent = zip(self._controls, self._counts, strict=False)
        self._counts = [count for control, count in sent if control not in controls]
        self._controls = [control for control in self._controls if control not in controls]

    def keep_last(self, limit_bytes: int) -> None:
        """Drop the oldest, whether it was received or not, until `held_bytes` is within the bound."""
        while (excess := self.held_bytes - limit_bytes) > 0:
            first = self._controls[0].position if self._controls else self._end
            if first <= self._start and self._controls:
                self.remove(self._controls[:1])
            else:
                self._drop_audio(min(self._start + excess, first))

    def _drop_audio(self, position: int) -> None:
        if position <= self._start:
            return
        del self._audio[: position - self._start]
        self._start = position
        if (unsent := position - self._cursor) > 0:
            self._lost_bytes += unsent
            self._count_base += unsent
            self._cursor = position


@dataclass(frozen=True, slots=True)
class CarriedPlace:
    """A continuation as the client of the session has it: a place from which any server can go on."""

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
    """An action in its place, or another frame that servers do not count as one."""

    number: int  # from 1, over all connections; of another frame, that of the action before it
    is_counted: bool = True

    def arrived(self, received_bytes: int, actions: int) -> bool:
        """True if it is before this place of the session."""
        return self.number <= actions if self.is_counted else self.position <= received_bytes


class LiveInput:
    """The input of one session; at most `limit_bytes` of it are held, the newest. Bytes are counted as the server does:
    a position is also the server's count, since a session that has lost bytes does not go on. `begin`: where the
    session is when its input begins; None at its own beginning."""

    def __init__(self, limit_bytes: int, begin: CarriedPlace | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: ReplayBuffer[Action] = ReplayBuffer(begin.received_bytes if begin is not None else 0)
        self.actions = begin.actions if begin is not None else 0

    @property
    def received_bytes(self) -> int:
        """Return the bytes of the session so far."""
        return self._buffer.end

    @property
    def held_bytes(self) -> int:
        """Return an upper bound of what is held."""
        return self._buffer.held_bytes

    @property
    def unsent_bytes(self) -> int:
        """Return how much of that the present connection has not been given."""
        return self._buffer.unsent_bytes

    def add_audio(self, pcm: bytes) -> None:
        """Add the next audio, cut anywhere."""
        self._buffer.append(pcm)

    def add_action(self, text: str) -> Action:
        """Add an action after all audio so far."""
        self.actions += 1
        action = Action(self._buffer.end, text, self.actions)
        self._buffer.append_control(action)
        return action

    def add_uncounted(self, text: str) -> None:
        """Add a frame that servers do not count as an action, unless it is there already."""
        last = self._buffer.controls[-1:]
        if not last or last[0].is_counted or last[0].position < self._buffer.end:
            self._buffer.append_control(Action(self._buffer.end, text, self.actions, is_counted=False))

    def take_back(self, action: Action) -> None:
        """The last action was not sent, and will not be."""
        self._buffer.remove([action])
        self.actions -= 1

    def next_frame(self) -> bytes | str | None:
        """Return the next frame for the present connection, which counts as sent from now on; None when all were
        sent."""
        return self._buffer.next_frame()

    def drop(self, continuation: CarriedPlace | None) -> None:
        """Drop what lies before the newest continuation, and the oldest of the rest beyond the limit."""
        if continuation is not None:
            place = continuation.received_bytes, continuation.actions
            self._buffer.forget(continuation.received_bytes)
            self._buffer.remove([action for action in self._buffer.controls if action.arrived(*place)])
        self._buffer.keep_last(self._limit_bytes)

    def holds(self, received_bytes: int, actions: int | None) -> bool:
        """True if all audio after that many bytes is held, and all actions after the first `actions`, if that is known.

        Without a number of actions, those after the bytes held are held too: the oldest are dropped first.
        """
        if actions is None:
            return self._buffer.start <= received_bytes
        held = sum(each.is_counted and each.number > actions for each in self._buffer.controls)
        return self._buffer.start <= received_bytes and held >= self.actions - actions

    def go_on(self, received_bytes: int, actions: int | None) -> int:
        """Note that a new connection begins after that many bytes and actions. Returns how many bytes are lost to it,
        none if they are held. Without a number of actions, those that were sent before the last of the bytes have
        arrived."""
        if actions is None:
            return self._buffer.resume(received_bytes)
        frames = self._buffer.controls
        missing = (place for place, each in enumerate(frames) if not each.arrived(received_bytes, actions))
        return self._buffer.resume(received_bytes, next(missing, len(frames)))
