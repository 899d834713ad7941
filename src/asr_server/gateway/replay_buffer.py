"""What a live client has sent and may have to be sent again. Pure: no I/O, no clock.

A position is a count of bytes of the client's audio, a sample's first byte being even; an odd byte that a reset throws
away is not counted. Everything before `start` is forgotten; the cursor is how far the present worker has been sent it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

_PIECE_BYTES = 256 * 1024  # of audio sent in one frame
_ARRIVAL_STEP_S = 0.05
_ROUNDED_BYTES = 192  # times are told in milliseconds
_ACT_BYTES = 32 * 1024  # what an action counts besides its frame: far more than it is, so that few of them wait


class Kind(Enum):
    """The actions that a worker answers."""

    FLUSH = "flush"
    RESET = "reset"
    CONFIG = "config"
    SETTLED = "settled"


@dataclass(slots=True, eq=False)
class ControlFrame:
    """An action at its place; `frame` is what asks for it.

    `told`: the client has its answer, or wants none. `done`: the present worker has answered.
    `implied`: not the client's own: a question of ours, or the flush that is in the orderly end of a connection.
    """

    kind: Kind
    position: int
    frame: str
    told: bool = False
    done: bool = False
    implied: bool = False


class ReplayBuffer:
    """`take_*` what the client sends, `next_frame` for the worker, `forget` what is done with."""

    def __init__(self, rate_hz: int) -> None:
        self._bytes_per_s = 2 * rate_hz
        self._audio = bytearray()
        self._start = self._cursor = self._end = 0
        self._acts: list[ControlFrame] = []
        self._acts_sent = 0
        self._rules: dict[str, Any] = {}  # what the forgotten configurations come to
        self._arrivals: deque[tuple[int, float]] = deque()
        self._sent_bytes = 0
        self.received_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What is kept counts so much."""
        return len(self._audio) + sum(_ACT_BYTES + len(act.frame) for act in self._acts)

    @property
    def start(self) -> int:
        """The position before which all is forgotten."""
        return self._start

    @property
    def end(self) -> int:
        """The position behind the last byte."""
        return self._end

    @property
    def sent(self) -> list[ControlFrame]:
        """The actions kept that the present worker has been sent, in order."""
        return self._acts[: self._acts_sent]

    def seconds(self, position: int) -> float:
        """A position as the time of the session."""
        return position / self._bytes_per_s

    def position(self, seconds: float) -> int:
        """A time of the session as the position of a whole sample."""
        return 2 * round(seconds * self._bytes_per_s / 2)

    # -- from the client ---------------------------------------------------------------------------------------------

    def take_audio(self, pcm: bytes, now_s: float) -> None:
        """The next bytes, cut anywhere."""
        self._audio += pcm
        self._end += len(pcm)
        self.received_bytes += len(pcm)
        if not self._arrivals or now_s - self._arrivals[-1][1] >= _ARRIVAL_STEP_S:
            self._arrivals.append((self._end, now_s))
        else:
            self._arrivals[-1] = (self._end, self._arrivals[-1][1])

    def take_act(self, kind: Kind, frame: str) -> None:
        """An action of the client, in its place among the audio."""
        if kind is Kind.RESET and self._end % 2:
            # The next byte is the first of a sample again.
            del self._audio[-1:]
            self._end -= 1
            self._cursor = min(self._cursor, self._end)
            # A question behind that byte, not yet sent, would take along the first byte that comes after the reset.
            for act in self._acts:
                act.position = min(act.position, self._end)
        self._acts.append(ControlFrame(kind, self._end, frame))

    def take_end(self) -> None:
        """The client ended its connection in order: that ends an open utterance, as a flush does."""
        self._acts.append(_implied(Kind.FLUSH, self._end))
        self._acts_sent = len(self._acts)  # the worker sees the end for itself

    def ask_settled(self) -> bool:
        """Ask the worker up to where all is done. Returns False when a question is under way already."""
        if any(act.kind is Kind.SETTLED and act.implied for act in self._acts):
            return False
        self._acts.append(_implied(Kind.SETTLED, self._end))
        return True

    # -- to the worker -----------------------------------------------------------------------------------------------

    def next_frame(self) -> bytes | str | None:
        """The next frame to send; None when everything has been sent."""
        act = self._acts[self._acts_sent] if self._acts_sent < len(self._acts) else None
        if act is not None and act.position <= self._cursor:
            self._acts_sent += 1
            return act.frame
        stop = min(self._end if act is None else act.position, self._cursor + _PIECE_BYTES)
        if stop == self._cursor:
            return None
        piece = bytes(self._audio[self._cursor - self._start : stop - self._start])
        self._cursor, self._sent_bytes = stop, self._sent_bytes + len(piece)
        return piece

    def restart(self) -> str | None:
        """A fresh worker gets everything again that is kept. Returns the frame to send before, if there is one."""
        self._cursor, self._sent_bytes, self._acts_sent = self._start, 0, 0
        for act in self._acts:
            act.done = False
        return json.dumps({"action": "config", **self._rules}) if self._rules else None

    def resumed(self, worker_bytes: int) -> None:
        """The same worker was reached again, and it has that much audio: send again what did not arrive."""
        lost = self._sent_bytes - worker_bytes
        if lost > 0:
            self._cursor, self._sent_bytes = max(self._start, self._cursor - lost), worker_bytes
        self._acts_sent = sum(act.position <= self._cursor for act in self.sent)
        for act in self.sent:
            if act.kind is not Kind.FLUSH:
                act.told = True
            act.done = act.told  # its answer may have gone to the connection that broke
        self._keep([act for act in self._acts if not (act.kind is Kind.SETTLED and act.done)])

    # -- from the worker ---------------------------------------------------------------------------------------------

    def answered(self, kind: Kind) -> bool:
        """The worker answered an action of this kind: the first that waits. Returns whether to tell the client."""
        act = self._waiting(kind)
        if act is None:
            return kind is not Kind.SETTLED
        news, act.done, act.told = not act.told, True, True
        if kind is Kind.SETTLED:
            self._drop(act)
        return news

    def flush_answered(self, start: int, end: int) -> bool:
        """The final that answers a flush spans these positions; returns as `answered`.

        In silence it is of no length: then the flush is kept, since it uses up a number without an end to go on from.
        """
        # What ended with an earlier connection was silence then, so nobody answers.
        over = [a for a in self.sent if a.kind is Kind.FLUSH and a.implied and a.position < end - _ROUNDED_BYTES]
        self._drop(*over)
        answered = self._waiting(Kind.FLUSH)
        news = self.answered(Kind.FLUSH)
        if answered is not None and start < end:
            self._drop(answered)
        return news

    def flush_repeated(self) -> None:
        """A final of no length has come again: it may answer a flush whose answer the client has."""
        act = self._waiting(Kind.FLUSH)
        if act is not None and act.told:
            act.done = True

    def settled(self, position: int) -> None:
        """As `forget`, and the numbers of all finals so far are accounted for."""
        self._keep([act for act in self._acts if not (act.kind is Kind.FLUSH and act.done)])
        self.forget(position)

    def forget(self, position: int) -> None:
        """Nothing before this position is needed any more, but for actions that are not answered."""
        position = max(self._start, min(position, self._cursor) & ~1)
        del self._audio[: position - self._start]
        self._start = position
        while self._arrivals and self._arrivals[0][0] < position:
            self._arrivals.popleft()
        kept = []
        for act in self._acts:
            over = act.position <= position and (act.done or (act.implied and act.kind is Kind.FLUSH))
            if not over:
                kept.append(act)
            elif act.kind is Kind.CONFIG:
                # A null changes nothing, as what is left out.
                asked = json.loads(act.frame)
                self._rules |= {name: value for name, value in asked.items() if name != "action" and value is not None}
        self._keep(kept)

    def arrived_s(self, position: int) -> float | None:
        """When the byte before this position came; None if that is forgotten."""
        place = bisect_left(self._arrivals, (position, 0.0))
        return self._arrivals[place][1] if place < len(self._arrivals) else None

    def _waiting(self, kind: Kind) -> ControlFrame | None:
        return next((act for act in self.sent if act.kind is kind and not act.done), None)

    def _drop(self, *gone: ControlFrame) -> None:
        self._keep([act for act in self._acts if act not in gone])

    def _keep(self, acts: list[ControlFrame]) -> None:
        self._acts_sent = sum(any(act is sent for act in acts) for sent in self.sent)
        self._acts = acts


def _implied(kind: Kind, position: int) -> ControlFrame:
    return ControlFrame(kind, position, json.dumps({"action": kind.value}), told=True, implied=True)
