"""A live session over more than one worker: what to send again, and what the client may still be told. Pure.

The client sees one session: its utterance numbers and times go on, a committed word is never taken back, nothing that
had its final is said again. A worker's messages are passed on untouched while there is nothing to do.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asr_server.core.audio import s_to_ms
from asr_server.gateway.replay_buffer import Kind, ReplayBuffer
from asr_server.text.stable_merge import continued, without_beginning

_ASK_EVERY_S = 5.0  # of audio: how much silence is kept at most beside an open utterance
_FINALS_KEPT = 256
_STATUS_KINDS = {"buffer_reset": Kind.RESET, "configured": Kind.CONFIG, "settled": Kind.SETTLED}


@dataclass(frozen=True, slots=True)
class _Shown:
    """What the client has of the open utterance. `end_s`: the audio that it was made from."""

    utterance: int
    committed: str
    end_s: float


class Replay:
    """One session. `hello` is the first message of its first worker; the client knows the session by that id."""

    def __init__(self, hello: dict[str, Any]) -> None:
        self.id = self.worker_id = str(hello["session_id"])
        self.journal = ReplayBuffer(int(hello["sample_rate"]))
        self.fruitless_restarts = 0  # since the session last moved on
        self._asked = 0
        self._base = self._offset = 0  # utterances: done before `journal.start`, and before the present worker's first
        self._offset_s = 0.0
        self._replayed = 0  # the position up to which the present worker heard what another had heard
        self._prelude: str | None = None  # sent by us, so its answer is ours
        self._shown: _Shown | None = None
        self._said_already: tuple[int, str] = (0, "")  # words that the utterance before has shown
        self._finals: OrderedDict[int, str] = OrderedDict()

    # -- from the client ---------------------------------------------------------------------------------------------

    def take_audio(self, pcm: bytes, now_s: float) -> None:
        """The next audio."""
        self.journal.take_audio(pcm, now_s)
        self._ask_in_time()

    def _ask_in_time(self) -> None:
        if self.journal.seconds(self.journal.end - self._asked) >= _ASK_EVERY_S:
            self._ask()

    def _ask(self) -> None:
        if self.journal.ask_settled():
            self._asked = self.journal.end

    # -- a new connection to a worker --------------------------------------------------------------------------------

    def restarted(self, hello: dict[str, Any]) -> str | None:
        """A fresh worker takes over. Returns the frame to send before all others, if there is one."""
        self.worker_id = str(hello["session_id"])
        self.fruitless_restarts += 1
        self._offset, self._offset_s = self._base, self.journal.seconds(self.journal.start)
        self._replayed = self.journal.end
        self._prelude = self.journal.restart()
        return self._prelude

    def resumed(self, hello: dict[str, Any]) -> None:
        """The same worker was reached again."""
        self.journal.resumed(int(hello["received_bytes"]))
        self._ask()

    def greeting(self, hello: dict[str, Any]) -> str:
        """The first message for a client that came back, from a worker's first message."""
        resumed = {"resumed": True, "received_bytes": self.journal.received_bytes}
        return json.dumps({**hello, "session_id": self.id, **resumed})

    def received_of(self, received: int) -> int:
        """The last utterance whose final the client has, by the present worker's numbers."""
        return max(0, received - self._offset)

    def missed(self, received: int) -> list[str]:
        """The client came back and has the finals up to `received`: those that it lacks."""
        return [final for number, final in self._finals.items() if received < number]

    # -- from the worker ---------------------------------------------------------------------------------------------

    def hear(self, raw: str, now_s: float) -> str | None:
        """What to tell the client for a message of the worker; None for nothing."""
        message = json.loads(raw)
        if "text" in message:
            return self._final(message, raw, now_s) if message["is_final"] else self._partial(message, raw, now_s)
        if "words" in message:
            return self._words(message)
        kind = _STATUS_KINDS.get(message.get("status"))
        if kind is None:
            return raw
        return self._status(kind, message, raw)

    def _words(self, message: dict[str, Any]) -> str:
        """The word times of a final, by the session's numbers and clock."""
        words = [
            {**word, "start": round(word["start"] + self._offset_s, 3), "end": round(word["end"] + self._offset_s, 3)}
            for word in message["words"]
        ]
        return json.dumps({**message, "utterance": message["utterance"] + self._offset, "words": words})

    def _status(self, kind: Kind, message: dict[str, Any], raw: str) -> str | None:
        if kind is Kind.CONFIG and self._prelude is not None:
            self._prelude = None
            return None
        news = self.journal.answered(kind)
        if kind is Kind.SETTLED:
            message["utterance"] += self._offset
            message["seconds"] += self._offset_s
            self._move_on(message["utterance"], message["seconds"], forget=self.journal.settled)
            self._ask_in_time()  # what came while this question was under way
            return json.dumps(message) if news else None
        if kind is Kind.RESET and news:
            self._shown, self._said_already = None, (0, "")
            self._ask()
        return raw if news else None

    def _partial(self, message: dict[str, Any], raw: str, now_s: float) -> str | None:
        mapped = self._mapped(message, now_s)
        number, shown = mapped["utterance"], self._shown
        if shown is not None and (number, mapped["end"]) < (shown.utterance, shown.end_s):
            return None  # made from less audio than what the client has seen
        text, committed, _ = self._wording(mapped)
        self._shown = _Shown(number, committed, mapped["end"])
        told = {**mapped, "text": text, "committed": committed, "tentative": text[len(committed) :]}
        return raw if told == message else json.dumps(told)

    def _final(self, message: dict[str, Any], raw: str, now_s: float) -> str | None:
        mapped = self._mapped(message, now_s)
        number = mapped["utterance"]
        start, end = self.journal.position(mapped["start"]), self.journal.position(mapped["end"])
        if number in self._finals:  # a worker that was reached again says it again, and so does a repeated flush
            if start == end:
                self.journal.flush_repeated()
            return None
        text, _, beyond = self._wording(mapped)
        told = {**mapped, "text": text, "committed": text}
        raw = raw if told == message else json.dumps(told)
        wanted = mapped["ending"] != "flush" or self.journal.flush_answered(start, end)
        self._shown, self._said_already = None, (number + 1, beyond)
        if start < end:
            self._move_on(number, mapped["end"], forget=self.journal.forget)
        if not wanted and not text:
            return None
        self._finals[number] = raw
        if len(self._finals) > _FINALS_KEPT:
            self._finals.popitem(last=False)
        return raw

    # -- inside ------------------------------------------------------------------------------------------------------

    def _mapped(self, message: dict[str, Any], now_s: float) -> dict[str, Any]:
        """The message with the session's numbers and times."""
        end_s = round(message["end"] + self._offset_s, 3)
        place = min(self.journal.position(end_s), self.journal.end)  # times are rounded
        lag_ms = message["lag_ms"]
        if place <= self._replayed and (arrived_s := self.journal.arrived_s(place)) is not None:
            lag_ms = max(lag_ms, s_to_ms(now_s - arrived_s))
        return {
            **message,
            "utterance": message["utterance"] + self._offset,
            "start": round(message["start"] + self._offset_s, 3),
            "end": end_s,
            "lag_ms": lag_ms,
        }

    def _wording(self, mapped: dict[str, Any]) -> tuple[str, str, str]:
        """Text and committed words as the client may see them, and shown words that the text has not reached."""
        text, committed, number = mapped["text"], mapped["committed"], mapped["utterance"]
        if self._said_already[0] == number and self._said_already[1]:
            text = without_beginning(self._said_already[1], text)
            committed = without_beginning(self._said_already[1], committed)
        shown = self._shown.committed if self._shown is not None and self._shown.utterance == number else ""
        told = continued(shown, text)
        if not (committed.startswith(shown) and told.text.startswith(committed)):
            committed = shown
        return told.text, committed, told.beyond

    def _move_on(self, utterance: int, end_s: float, *, forget: Callable[[int], None]) -> None:
        """Utterances up to this one, and all audio before `end_s`, are done with."""
        before = self._base, self.journal.start
        forget(self.journal.position(end_s))
        self._base = max(self._base, utterance)
        if (self._base, self.journal.start) != before:
            self.fruitless_restarts = 0
