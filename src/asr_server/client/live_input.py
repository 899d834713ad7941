"""The buffer of a live client: audio and actions that may have to be sent again. No I/O, no clock.

docs/use/websocket.md specifies the same rules for any client ("A buffer for resuming").

A position is a count of bytes of audio since the input began, over all sessions. `next_frame` returns everything once,
in order. A server that still has the session reports what it received, and gets the rest (`resume`). A new session gets
everything without a final (`reopen`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_PIECE_BYTES = 256 * 1024  # of audio sent in one frame
_ACTION_BYTES = 32 * 1024  # counted for an action besides its text: far more than it needs, so that few are held


@dataclass(slots=True, eq=False)
class Action:
    """A text frame and its place in the audio."""

    position: int  # it comes after all audio before this position
    kind: str
    text: str
    number: int = 0  # in the present session, from 1


class LiveInput:
    """Holds the newest audio and actions, at most `limit_bytes` of both."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._audio = bytearray()  # the bytes [start, end)
        self._start = self._end = 0
        self._half = b""  # half a sample, which is sent once the other half has come
        self._actions: list[Action] = []
        self._numbered = 0  # actions of the present session
        self.begin = 0  # the position at which the present session's count of bytes begins
        self._finished = 0  # all audio before this position is silence, was discarded or has its final
        # The present connection was given all audio before `_cursor`, and the first `_given` of the held actions.
        self._cursor = self._given = 0

    @property
    def held_bytes(self) -> int:
        """Return an upper bound of the held bytes."""
        return len(self._audio) + sum(_ACTION_BYTES + len(action.text) for action in self._actions)

    def add_audio(self, pcm: bytes) -> None:
        """Add the next audio, cut anywhere, also inside a sample."""
        pcm = self._half + pcm
        whole = len(pcm) - len(pcm) % 2
        self._half = pcm[whole:]
        self._audio += pcm[:whole]
        self._end += whole

    def add_action(self, kind: str, text: str) -> Action:
        """Add an action after all audio so far."""
        if kind == "reset":
            self._half = b""
        self._numbered += 1
        action = Action(self._end, kind, text, self._numbered)
        self._actions.append(action)
        return action

    def take_back(self, action: Action) -> None:
        """Remove the last action, which was not sent and will not be."""
        self._remove([action])
        self._numbered -= 1

    def next_frame(self) -> bytes | str | None:
        """Return the next frame for the present connection, which counts as sent from now on.

        None if everything was sent, or if the next audio was dropped.
        """
        action = self._actions[self._given] if self._given < len(self._actions) else None
        if action is not None and action.position <= self._cursor:
            self._given += 1
            return action.text
        stop = min(self._end if action is None else action.position, self._cursor + _PIECE_BYTES)
        if stop == self._cursor or self._cursor < self._start:
            return None
        piece = bytes(self._audio[self._cursor - self._start : stop - self._start])
        self._cursor = stop
        return piece

    # -- another connection ------------------------------------------------------------------------------------------

    def resume(self, received_bytes: int, received_actions: int) -> bool:
        """Send again everything of the present session after this many bytes and actions.

        Returns False and changes nothing if part of it is no longer held.
        """
        position = self.begin + received_bytes
        missing = [action for action in self._actions if action.number > received_actions]
        if position < self._start or len(missing) < self._numbered - received_actions:
            return False
        self._cursor = min(position, self._cursor)
        self._given = len(self._actions) - len(missing)
        return True

    def reopen(self, first: Iterable[tuple[str, str]]) -> bool:
        """Send these actions (kind and text) to a new session, then everything that is not finished.

        Returns False and changes nothing if part of it is no longer held.
        """
        if self._start > self._finished:
            return False
        self.begin = self._cursor = self._finished
        self._actions = [*(Action(self.begin, *action) for action in first), *self._actions]
        for number, action in enumerate(self._actions, start=1):
            action.number = number
        self._numbered, self._given = len(self._actions), 0
        return True

    # -- what need not be sent again ---------------------------------------------------------------------------------

    def answered(self, kind: str) -> str | None:
        """Drop the oldest sent action of this kind, now answered. Returns its text, or None if there was none."""
        oldest = next((action for action in self._actions[: self._given] if action.kind == kind), None)
        if oldest is None:
            return None
        self._remove([oldest])
        return oldest.text

    def discarded(self) -> None:
        """Drop the oldest sent reset, which has been answered, and the audio before it."""
        for reset in [action for action in self._actions[: self._given] if action.kind == "reset"][:1]:
            self._finish(reset.position)
            self._remove([reset])

    def finished(self, position: int) -> None:
        """Drop the audio before this position, which has its final or was silence."""
        self._finish(min(position, self._cursor))

    def trim(self) -> None:
        """Drop the oldest audio and actions beyond the limit, whether they have arrived or not."""
        while (excess := self.held_bytes - self._limit_bytes) > 0:
            first = self._actions[0].position if self._actions else self._end
            if first <= self._start and self._actions:
                self._remove(self._actions[:1])
            else:
                self._drop_audio(min(self._start + excess, first))

    def _finish(self, position: int) -> None:
        self._finished = max(self._finished, position)
        self._remove([action for action in self._actions if action.position < self._finished])
        self._drop_audio(self._finished)

    def _drop_audio(self, position: int) -> None:
        del self._audio[: max(0, position - self._start)]
        self._start = max(self._start, position)

    def _remove(self, gone: list[Action]) -> None:
        self._given -= sum(action in gone for action in self._actions[: self._given])
        self._actions = [action for action in self._actions if action not in gone]
