"""The audio and actions that a live client has sent, and which actions were answered. Pure: no I/O, no clock.

`ReplayBuffer` decides what a worker is sent, also after a broken connection. This module adds the meaning of actions:
an action is kept until it is answered, and the configurations that are dropped are kept as one.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from asr_server.core.audio import samples_to_s
from asr_server.features.handover.continuation import Continuation
from asr_server.live.machine.replay_buffer import ControlFrame, ReplayBuffer

_ARRIVAL_STEP_S = 0.05
_SENT_KEPT = 4_096
_ENDPOINTING = frozenset(("endpointing", "use_server_vad"))
_ROUNDING_BYTES = 192  # messages give times in whole milliseconds


class ActionKind(Enum):
    """The actions that a worker answers; the values are the wire's."""

    FLUSH = "flush"
    RESET = "reset"
    CONFIG = "config"
    CHECKPOINT = "settled"


@dataclass(slots=True, eq=False)
class ActionFrame(ControlFrame):
    """An action at its position in the audio."""

    kind: ActionKind
    client_acked: bool = False  # the client has its answer, or expects none
    worker_acked: bool = False  # the present worker has answered
    from_gateway: bool = False  # a checkpoint of the gateway, or the flush that the orderly end of a connection implies
    number: int = 0  # counts the client's actions from 1; 0 for those of the gateway


class _SentActions:
    """The numbers of the actions that one worker has been sent, in order: the client's number, or 0 for the gateway's.

    `replayed`: how many of the first actions were held when the worker began. Actions between them are finished and
    not sent again, so that a worker's count of the first ones does not give the client's count.
    """

    def __init__(self, replayed: int = 0) -> None:
        self._numbers: deque[int] = deque(maxlen=_SENT_KEPT)
        self._first = 1  # the worker's number of the first of them
        self._replayed = replayed

    def add(self, number: int) -> None:
        """Add the number of the next action that the worker is sent."""
        self._first += len(self._numbers) == _SENT_KEPT
        self._numbers.append(number)

    def forget_after(self, actions: int) -> None:
        """Forget the actions after the first `actions`: the worker does not have them, and they are sent again."""
        while self._numbers and self._first + len(self._numbers) - 1 > actions:
            self._numbers.pop()

    def following(self, actions: int) -> int | None:
        """Return the client's number of its first action after `actions` of the worker's.

        Returns 0 if there is none, and None if that is not known.
        """
        if actions < self._replayed or actions < self._first - 1:
            return None
        behind = islice(self._numbers, actions - self._first + 1, None)
        return next((number for number in behind if number), 0)


class ClientInput:
    """The input of one session. `begin`: where the session begins at this gateway."""

    def __init__(self, rate_hz: int, begin: Continuation) -> None:
        self.buffer: ReplayBuffer[ActionFrame] = ReplayBuffer()
        self.received_bytes = begin.received_bytes  # `buffer` does not count a byte that a reset discards
        self.actions = begin.actions  # from the client, also those that were answered with an error
        self._began_s = samples_to_s(begin.samples)
        self._bytes_per_s = 2 * rate_hz
        self._dropped_config: dict[str, Any] = {}  # the configurations that are no longer held, as one
        if (configured := begin.configured) is not None:
            self._dropped_config = {
                "language": configured.language,
                "hotwords": configured.hotwords,
                "endpointing": configured.endpointing,
            }
        self._arrivals: deque[tuple[int, float]] = deque()
        self._client_bytes = begin.received_bytes  # of the client before position 0, and discarded ones before `start`
        self._discarded: list[int] = []  # positions after that at which a reset discarded a byte
        self._sent = _SentActions()

    def seconds(self, position: int) -> float:
        """A position as the time of the session."""
        return self._began_s + position / self._bytes_per_s

    @property
    def held_from_s(self) -> float:
        """Seconds of audio before what a fresh worker would get."""
        return self.buffer.start / self._bytes_per_s

    def position(self, seconds: float) -> int:
        """A time of the session as the position of a whole sample."""
        return 2 * round((seconds - self._began_s) * self._bytes_per_s / 2)

    def worker_has(self, received_bytes: int, actions: int) -> tuple[int, int] | None:
        """Return how many bytes and actions of the client correspond to these counts of the present worker.

        Returns None if that is not known. While a worker does the actions that were replayed to it, it is not known.
        """
        position = self.buffer.position_of(received_bytes)
        unsent = (each.number for each in self.buffer.controls[len(self.buffer.sent_controls) :] if each.number)
        following = self._sent.following(actions)
        if following is None:
            return None
        number = following or next(unsent, self.actions + 1)
        return self._client_bytes + position + sum(place <= position for place in self._discarded), number - 1

    def next_frame(self) -> bytes | str | None:
        """Return the next frame for the worker, as `ReplayBuffer.next_frame` does."""
        frame = self.buffer.next_frame()
        if isinstance(frame, str):
            self._sent.add(self.buffer.sent_controls[-1].number)
        return frame

    # -- from the client ---------------------------------------------------------------------------------------------

    def add_audio(self, pcm: bytes, now_s: float) -> None:
        """Add the next bytes. They need not be whole samples."""
        self.buffer.append(pcm)
        self.received_bytes += len(pcm)
        end = self.buffer.end
        if not self._arrivals or now_s - self._arrivals[-1][1] >= _ARRIVAL_STEP_S:
            self._arrivals.append((end, now_s))
        else:
            self._arrivals[-1] = (end, self._arrivals[-1][1])

    def add_action(self, kind: ActionKind, text: str) -> None:
        """Add an action of the client at the present end of the audio."""
        self.actions += 1
        if kind is ActionKind.RESET:
            end = self.buffer.end
            self.buffer.align()
            self._discarded += [self.buffer.end] * (end - self.buffer.end)
        self.buffer.append_control(ActionFrame(self.buffer.end, text, kind, number=self.actions))

    def refuse_action(self) -> None:
        """Count an action of the client that was answered with an error."""
        self.actions += 1

    def add_end(self) -> None:
        """Add the orderly end of the client's connection: it ends an open utterance, as a flush does."""
        # It counts as sent: the worker sees the end of the connection.
        self.buffer.append_control(self._gateway_action(ActionKind.FLUSH), sent=True)

    def request_checkpoint(self) -> bool:
        """Ask the worker how far it has finished. Returns False while a request of the gateway's is under way."""
        if any(action.kind is ActionKind.CHECKPOINT and action.from_gateway for action in self.buffer.controls):
            return False
        self.buffer.append_control(self._gateway_action(ActionKind.CHECKPOINT))
        return True

    def _gateway_action(self, kind: ActionKind) -> ActionFrame:
        text = json.dumps({"action": kind.value})
        return ActionFrame(self.buffer.end, text, kind, client_acked=True, from_gateway=True)

    # -- a new connection to a worker --------------------------------------------------------------------------------

    def restart(self) -> str | None:
        """Prepare to send a fresh worker everything that is held. Returns the frame to send first, if there is one."""
        self.buffer.restart()
        for action in self.buffer.controls:
            action.worker_acked = False
        self._sent = _SentActions(replayed=len(self.buffer.controls) + bool(self._dropped_config))
        if not self._dropped_config:
            return None
        self._sent.add(0)
        return json.dumps({"action": "config", **self._dropped_config})

    def resume(self, received_bytes: int, actions: int | None = None) -> int:
        """Go on with the same worker after a broken connection. Returns how many bytes are lost to the worker.

        `received_bytes` and `actions` are the worker's counts; `actions` is None from a worker that does not count.
        """
        lost = self.buffer.resume(received_bytes)
        if actions is not None:
            self._sent.forget_after(actions)
        for action in self.buffer.sent_controls:
            # The answer of any other action may have gone to the connection that broke, and is not given again; the
            # final that answers a flush is.
            if action.kind is not ActionKind.FLUSH:
                action.client_acked = True
            action.worker_acked = action.client_acked
        answered = [a for a in self.buffer.controls if a.kind is ActionKind.CHECKPOINT and a.worker_acked]
        self.buffer.remove(answered)
        return lost

    # -- from the worker ---------------------------------------------------------------------------------------------

    def on_answer(self, kind: ActionKind) -> bool:
        """Note that the worker answered its first unanswered action of this kind.

        Returns True if the client gets the answer.
        """
        action = self._first_unanswered(kind)
        if action is None:
            return kind is not ActionKind.CHECKPOINT
        is_new = not action.client_acked
        action.client_acked = action.worker_acked = True
        if kind is ActionKind.CHECKPOINT:
            self.buffer.remove([action])
        return is_new

    def on_flush_answer(self, start: int, end: int) -> bool:
        """Note that the worker answered a flush with a final from `start` to `end`. Returns the same as `on_answer`.

        The final of a flush in silence has no length. Then the flush is kept: it uses an utterance number, and its
        final has no end from which a fresh worker could go on.
        """
        # The end of an earlier connection that came in silence has no final.
        in_silence = [
            action
            for action in self.buffer.sent_controls
            if action.kind is ActionKind.FLUSH and action.from_gateway and action.position < end - _ROUNDING_BYTES
        ]
        self.buffer.remove(in_silence)
        answered = self._first_unanswered(ActionKind.FLUSH)
        is_new = self.on_answer(ActionKind.FLUSH)
        if answered is not None and start < end:
            self.buffer.remove([answered])
        return is_new

    def on_repeated_empty_final(self) -> None:
        """Note that a final of no length came again: it may answer a flush whose answer the client has."""
        flush = self._first_unanswered(ActionKind.FLUSH)
        if flush is not None and flush.client_acked:
            flush.worker_acked = True

    def on_checkpoint(self, position: int) -> None:
        """Forget as `forget` does, and also the answered flushes: the checkpoint has counted their finals."""
        self.buffer.remove([a for a in self.buffer.controls if a.kind is ActionKind.FLUSH and a.worker_acked])
        self.forget(position)

    def forget(self, position: int) -> None:
        """Drop what is before this position, except actions without an answer: no worker needs it again."""
        self.buffer.forget(position)
        start = self.buffer.start
        while self._arrivals and self._arrivals[0][0] < start:
            self._arrivals.popleft()
        self._client_bytes += sum(place < start for place in self._discarded)
        self._discarded = [place for place in self._discarded if place >= start]
        finished = [action for action in self.buffer.controls if action.position <= start and _is_finished(action)]
        for action in finished:
            if action.kind is ActionKind.CONFIG:
                # Null changes nothing, like a field that is left out.
                config = json.loads(action.text)
                given = {k: v for k, v in config.items() if k != "action" and v is not None}
                if given.keys() & _ENDPOINTING:  # two names for one thing: the later one counts
                    self._dropped_config = {k: v for k, v in self._dropped_config.items() if k not in _ENDPOINTING}
                self._dropped_config |= given
        self.buffer.remove(finished)

    def arrived_s(self, position: int) -> float | None:
        """Return when the byte before this position arrived, or None if that is no longer known."""
        place = bisect_left(self._arrivals, (position, 0.0))
        return self._arrivals[place][1] if place < len(self._arrivals) else None

    def _first_unanswered(self, kind: ActionKind) -> ActionFrame | None:
        return next((a for a in self.buffer.sent_controls if a.kind is kind and not a.worker_acked), None)


def _is_finished(action: ActionFrame) -> bool:
    return action.worker_acked or (action.from_gateway and action.kind is ActionKind.FLUSH)
