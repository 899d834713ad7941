"""A live session over more than one worker: the gateway is a client that carries it from one to the next. Pure but for
the clock of lags.

The gateway asks its workers for continuations (docs/use/websocket.md, "Moving to another server"). It keeps the newest
one, the client's input after it and the last text of the open utterance, and the next worker gets all three. Messages
pass unchanged; the client gets none that only the gateway has asked for, and no answer twice.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from dataclasses import asdict, dataclass
from typing import Any

from asr_server.client.live_input import CarriedPlace, LiveInput
from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.handover.continuation import MAX_SHOWN_CHARS, Continuation, parse_state
from asr_server.live.actions import CLIENT_LEFT
from asr_server.live.arrivals import ArrivalTimes
from asr_server.net.shared_bytes import LIMIT_BYTES

_ARRIVAL_STEP_S = 0.05
_FINALS_KEPT = 256
_ISSUERS_KEPT = 64
_ANSWERS = {"reset": "buffer_reset", "config": "configured", "settled": "settled"}  # to actions, by their status
_CHECKPOINT = '{"action":"settled"}'
_OF_WORKER = {"continuation", "continued", "actions"}  # in a first message: what it says to the gateway

Message = dict[str, Any]


@dataclass(slots=True)
class _Answer:
    """An answer to an action that a worker may still have to do."""

    status: str
    has_client: bool = False  # the client has it, or expects none
    is_due: bool = True  # the present worker has not sent it


class CarriedSession:
    """One session. `hello` is the first message of its first worker, `received` the last final that the client has.

    `can_move`: the client has asked for continuations itself.
    """

    def __init__(self, hello: Message, received: int = 0, *, can_move: bool = False) -> None:
        self.id = str(hello["session_id"])
        self.can_move = can_move
        begin = CarriedPlace.of(hello)
        assert begin is not None, "a worker that is asked for continuations sends one first"
        self.place = self._first_place = begin  # the newest continuation
        self.input = LiveInput(LIMIT_BYTES, begin)  # the gateway stops reading long before that
        self.unproductive_restarts = 0  # since the session last advanced
        self._rate_hz = int(hello["sample_rate"])
        self._received = received
        self._finals: OrderedDict[int, str] = OrderedDict()
        self._open: Message = {}  # the last partial of the utterance without a final
        self._answers: dict[int, _Answer] = {}  # by the numbers of their actions
        self._arrivals = ArrivalTimes()
        self._replayed_end = 0  # up to this byte the present worker got what another had got before
        self._issuers: deque[str] = deque(maxlen=_ISSUERS_KEPT)
        self._state = self._of_new_worker(hello)

    def _of_new_worker(self, hello: Message) -> Continuation:
        state = parse_state(hello["continuation"]["state"])
        self._issuers.append(state.issuer)
        return state

    def issued(self, state: Continuation) -> bool:
        """True if a worker of this session issued the state, and not another server since."""
        return state.issuer in self._issuers

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    # -- to the client -----------------------------------------------------------------------------------------------

    def hello_for_new_client(self, hello: Message) -> str:
        """Return the first message for the client of a session that begins here, from the worker's."""
        return json.dumps(hello if self.can_move else _without_workers_own(hello))

    def hello_for_client(self, hello: Message) -> str:
        """Return the first message for a client that came back, from a worker's first message."""
        resumed: Message = {"resumed": True, "received_bytes": self.input.received_bytes}
        if self.can_move:
            resumed["actions"] = self.input.actions
        return json.dumps({**_without_workers_own(hello), **resumed})

    def finals_after(self, received: int) -> list[str]:
        """Return the finals after utterance `received`, the last one that the client has."""
        return [final for number, final in self._finals.items() if received < number]

    def current_continuation(self) -> Message:
        """Return the newest continuation as the field of a message."""
        return asdict(self.place)

    # -- from the client ---------------------------------------------------------------------------------------------

    def add_audio(self, pcm: bytes, arrived_s: float) -> None:
        """Add the next audio, cut anywhere."""
        self.input.add_audio(pcm)
        arrivals = self._arrivals
        if arrivals.times_s and arrived_s - arrivals.times_s[-1] < _ARRIVAL_STEP_S:
            arrivals.ends_samples[-1] = self.input.received_bytes
        else:
            arrivals.add(self.input.received_bytes, arrived_s)

    def add_action(self, kind: str, text: str) -> None:
        """Add an action of the client."""
        number = self.input.add_action(text).number
        if kind in _ANSWERS:
            self._answers[number] = _Answer(_ANSWERS[kind])

    def add_refused_action(self) -> None:
        """Add an action that was answered with an error here. The worker has to count it: it gets another one, which
        changes nothing."""
        self._answers[self.input.add_action(_CHECKPOINT).number] = _Answer("settled", has_client=True)

    def add_end(self) -> None:
        """Add the orderly end of the client's connection, which ends an open utterance."""
        self.input.add_uncounted(CLIENT_LEFT)

    # -- to a worker -------------------------------------------------------------------------------------------------

    def worker_query(self, began_s: float) -> dict[str, str]:
        """Return the parameters with which a worker goes on with the session. `began_s`: when its audio began here."""
        seconds = (self.place.received_bytes - self._first_place.received_bytes) / (2 * self._rate_hz)
        own = {"handover": "true", "session_id": self.id, "received": str(self._received)}
        return own | {"began_s": str(began_s + seconds)}

    @property
    def first_frame(self) -> str:
        """The first frame for that worker: from where it goes on, and what the client was shown."""
        shown = self._open if len(self._open.get("committed", "")) <= MAX_SHOWN_CHARS else {}
        fields = {name: shown[name] for name in ("utterance", "committed", "end", "speakers") if name in shown}
        return json.dumps({"action": "continue", "state": self.place.state, **fields})

    def went_on(self, hello: Message) -> int:
        """Send from now on what the worker lacks by its first message. Returns how many bytes are lost to it."""
        received_bytes, actions = int(hello["received_bytes"]), int(hello["actions"])
        if "continued" in hello:
            self.unproductive_restarts += 1
            self._state = self._of_new_worker(hello)
            self._replayed_end = self.input.received_bytes
            self._keep_continuation(hello)
            for answer in self._answers.values():
                answer.is_due = True
            for number, final in self._finals.items():  # no worker knows anything of their voices any more
                if "speakers" in (kept := json.loads(final)):
                    self._finals[number] = json.dumps({**kept, "speakers_settled": True})
        else:
            for number, answer in self._answers.items():
                # An answer may have gone to the connection that broke, and is not given again.
                answer.is_due = number > actions
                answer.has_client |= number <= actions
        return self.input.go_on(received_bytes, actions)

    # -- from the worker ---------------------------------------------------------------------------------------------

    def on_message(self, raw: str) -> str | None:
        """Return the message for the client in place of this message of the worker's, or None if it gets none."""
        message = json.loads(raw)
        status = message.get("status")
        if "text" in message:
            return self._text(message, raw)
        if "continuation" in message:
            self._keep_continuation(message)
            return raw if self.can_move else None
        if message.get("type") == "speaker_update":
            self._on_speakers(message)
        elif status in _ANSWERS.values():
            return raw if self._is_new_answer(status) else None
        return raw

    def _keep_continuation(self, message: Message) -> None:
        before, self.place = self.place, CarriedPlace.of(message) or self.place
        self.input.drop(self.place)
        self._answers = {number: each for number, each in self._answers.items() if number > self.place.actions}
        if (before.received_bytes, before.actions) != (self.place.received_bytes, self.place.actions):
            self.unproductive_restarts = 0

    def _text(self, message: Message, raw: str) -> str | None:
        """Return a partial or final with the lag since the client's audio arrived."""
        is_final = message["is_final"]
        if not is_final and any(
            a.status == "buffer_reset" and a.has_client and a.is_due for a in self._answers.values()
        ):
            return None  # the client has been told that this utterance, which is done again, was discarded
        since_s = message["end"] - self._state.samples / SAMPLE_RATE
        end = self._state.received_bytes + 2 * round(since_s * self._rate_hz)
        end = min(end, self.input.received_bytes)  # times are rounded
        if end <= self._replayed_end and (lag_ms := self._arrivals.lag_ms(end)) > message["lag_ms"]:
            message["lag_ms"] = lag_ms
            raw = json.dumps(message)
        if not is_final:
            self._open = message
            return raw
        self._open, self._received = {}, message["utterance"]
        self._finals[self._received] = raw
        if len(self._finals) > _FINALS_KEPT:
            self._finals.popitem(last=False)
        return raw

    def _on_speakers(self, message: Message) -> None:
        """Note new labels of a text that the client has."""
        changed = {name: message[name] for name in ("speakers", "speakers_settled")}
        if (number := message["utterance"]) in self._finals:
            self._finals[number] = json.dumps({**json.loads(self._finals[number]), **changed})
        elif number == self._open.get("utterance"):
            self._open |= changed

    def _is_new_answer(self, status: str) -> bool:
        """Note an answer of the worker. Returns True if the client gets it."""
        answer = next((each for each in self._answers.values() if each.status == status and each.is_due), None)
        # Without one, it is of an action that had arrived before the connection, whose answer may have been lost.
        is_new = status != "settled" if answer is None else not answer.has_client
        if answer is not None:
            answer.has_client, answer.is_due = True, False
        if is_new and status == "buffer_reset":
            self._open = {}
        return is_new


def _without_workers_own(hello: Message) -> Message:
    return {name: value for name, value in hello.items() if name not in _OF_WORKER}
