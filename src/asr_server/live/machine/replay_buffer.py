"""Audio and control frames of a live session that may have to be sent again after a cut. Pure: no I/O, no clock.

The gateway uses it towards its worker and the Python client towards its server. docs/use/websocket.md specifies the
same rules for any client ("Resuming: the client's buffer").

A position is a count of bytes of audio since the session began. The peer says how many bytes it has received; the bytes
that it lacks are sent again, and the control frames between them in their places.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

_PIECE_BYTES = 256 * 1024  # of audio sent in one frame
_CONTROL_BYTES = 32 * 1024  # what a control frame counts besides its text: far more than it is, so that few are held


@dataclass(slots=True, eq=False)
class ControlFrame:
    """A text frame and its place."""

    position: int  # it stands behind all audio before this
    text: str


Control = TypeVar("Control", bound=ControlFrame)


class ReplayBuffer(Generic[Control]):
    """The input of one sender: `[start, end)` of the audio is held, and control frames in order.

    `next_frame` gives everything once, in order; after `resume` or `restart` it begins again where the peer is.
    """

    def __init__(self) -> None:
        self._audio = bytearray()  # the bytes [start, end)
        self._start = self._end = 0
        self._cursor = 0  # the present connection has been given everything before this position
        self._count_base = 0  # the position at which the peer's count of bytes begins
        self._removed: list[int] = []  # where `align` took back a byte that the peer has counted
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

    @property
    def sent_controls(self) -> list[Control]:
        """The control frames that the present connection has been given, in order."""
        return self._controls[: len(self._counts)]

    # -- to be sent --------------------------------------------------------------------------------------------------

    def append(self, pcm: bytes) -> None:
        """The next audio, cut anywhere, also inside a sample."""
        self._audio += pcm
        self._end += len(pcm)

    def append_control(self, control: Control, *, sent: bool = False) -> None:
        """The next control frame; its position is `end`. `sent`: it and all before it count as sent already."""
        assert control.position == self._end, "a control frame belongs behind all audio appended before it"
        self._controls.append(control)
        while sent and len(self._counts) < len(self._controls):
            self._mark_sent()

    def align(self) -> None:
        """Take back the last byte if it is half a sample: the next byte is the first of a sample."""
        if self._end % 2 == 0:
            return
        del self._audio[-1:]
        self._end -= 1
        for control in self._controls:
            control.position = min(control.position, self._end)
        if self._cursor > self._end:
            # The peer has the byte, or is about to: it counts one more than the positions do.
            self._removed.append(self._end)
            self._cursor = self._end

    def next_frame(self) -> bytes | str | None:
        """The next frame to send, which counts as sent from now on; None when everything has been sent."""
        control = self._controls[len(self._counts)] if len(self._counts) < len(self._controls) else None
        if control is not None and control.position <= self._cursor:
            self._mark_sent()
            return control.text
        stop = min(self._end if control is None else control.position, self._cursor + _PIECE_BYTES)
        if stop == self._cursor:
            return None
        piece = bytes(self._audio[self._cursor - self._start : stop - self._start])
        self._cursor = stop
        return piece

    # -- a new connection --------------------------------------------------------------------------------------------

    def position_of(self, received_bytes: int) -> int:
        """The position at which the peer of the present connection had received so many bytes."""
        position = self._count_base + received_bytes
        for place in self._removed:
            position -= position > place
        return position

    def resume(self, received_bytes: int, received_controls: int | None = None) -> int:
        """The peer that is reached has received so many bytes. Returns how many bytes are lost to it.

        `received_controls`: how many of the control frames held it has received, where it says so. Otherwise a control
        frame behind a byte that did not arrive is sent again, and one behind the last byte that arrived counts as
        received: whether it was cannot be told from the bytes.
        """
        position = self.position_of(received_bytes)
        lost = max(0, self._start - position)
        self._lost_bytes += lost
        self._cursor = min(max(self._start, position), self._cursor)
        # The peer goes on counting from what it has; lost bytes are in positions and not in its count.
        self._count_base, self._removed = self._cursor - received_bytes, []
        if received_controls is None:
            self._counts = [count for count in self._counts if count <= received_bytes]
        else:
            self._counts = self._counts[:received_controls]
        return lost

    def restart(self) -> None:
        """A fresh peer, which has received nothing, is sent everything that is held."""
        self._cursor = self._count_base = self._start
        self._removed, self._counts = [], []

    # -- to be dropped -----------------------------------------------------------------------------------------------

    def forget(self, position: int) -> None:
        """Audio before this position will not be asked for again. Only whole samples that were sent are dropped."""
        self._drop_audio(min(position, self._cursor) & ~1)

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

    def _mark_sent(self) -> None:
        position = max(self._cursor, self._controls[len(self._counts)].position)
        self._counts.append(position - self._count_base + len(self._removed))

    def _drop_audio(self, position: int) -> None:
        if position <= self._start:
            return
        del self._audio[: position - self._start]
        self._start = position
        if (unsent := position - self._cursor) > 0:
            self._lost_bytes += unsent
            self._count_base += unsent
            self._cursor = position
