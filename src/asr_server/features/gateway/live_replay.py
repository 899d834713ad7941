"""A live session over more than one worker. Decides what a worker is sent again, and what the client gets. Pure.

The client sees one session: its utterance numbers and times continue, a committed word is never taken back, and no
utterance gets a second final. As long as one worker serves the session, its messages pass unchanged.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from asr_server.core.audio import SAMPLE_RATE, s_to_ms, samples_to_s
from asr_server.features.gateway.client_input import ActionKind, ClientInput
from asr_server.features.handover import continuation_wire as continuation
from asr_server.features.handover.continuation import Continuation, Offset, ShownUtterance
from asr_server.features.handover.continuation_wire import ContinueRequest
from asr_server.features.handover.shown_text import ShownText
from asr_server.features.speakers.shown_speakers import ShownSpeakers
from asr_server.live.actions import TURN_LIKELY

_CHECKPOINT_EVERY_S = 5.0  # of audio: so much silence is held at most beside an open utterance
_FINALS_KEPT = 256
_WORKERS_OWN = {"continuation", "actions"}
_SPEAKERS_RESTARTED = json.dumps({"status": "speakers_restarted"})
_ANSWERED_KINDS = {
    "buffer_reset": ActionKind.RESET,
    "configured": ActionKind.CONFIG,
    "settled": ActionKind.CHECKPOINT,
}

Message = dict[str, Any]


class LiveReplay:
    """One session. `hello` is the first message of its first worker.

    The client knows the session by the id in `hello`, or by the id of the session of another server that it continues.
    Each worker counts utterances and seconds from its own beginning. The offset turns its figures into the session's.
    """

    def __init__(self, hello: Message, moved: ContinueRequest | None = None, received: int = 0) -> None:
        self.worker_session_id = str(hello["session_id"])
        begin = moved.state if moved is not None else Continuation(self.worker_session_id, "")
        self.id = begin.session_id
        self.continuation = replace(begin, issuer=secrets.token_hex(8))  # the newest one
        self.can_move = "continuation" in hello
        self._is_moved = moved is not None
        self.input = ClientInput(int(hello["sample_rate"]), begin)
        self.unproductive_restarts = 0  # since the session last advanced
        self._checkpoint_requested = 0  # the position at which the gateway last asked for a checkpoint
        self._finished_utterances = begin.utterances  # up to the start of what is held
        self._offset = Offset(begin.utterances, samples_to_s(begin.samples))  # of the present worker
        self._replayed_end = 0  # up to this position the present worker got what another had got before
        self._pending_config = self.input.restart()  # sent by the gateway, so the client does not get its answer
        self._shown = ShownText()
        self._finals: OrderedDict[int, str] = OrderedDict()
        self._tells_speakers = "speakers" in hello
        self._speakers = ShownSpeakers()
        self._notice: str | None = None  # that another worker has taken over, where it makes a difference
        self._finals_known = received if moved is not None else 0  # up to here the client has them
        if moved is not None:
            self._begin_with(moved.state, moved.shown)

    def _begin_with(self, begin: Continuation, shown: ShownUtterance) -> None:
        if shown.utterance > max(self._finals_known, begin.utterances):
            self._shown.begin(shown.utterance, shown.committed, shown.end_s)
        self._shown.carry_over(begin.utterances + 1, begin.carried_over)
        self._speakers.begin(shown.utterance, [dict(run) for run in shown.speakers], begin.first_speaker)
        if self._tells_speakers:
            self._notice = _SPEAKERS_RESTARTED

    @property
    def first_frame(self) -> str | None:
        """The frame that the first worker is sent before all others, if there is one."""
        return self._pending_config

    def hello_for_new_client(self, hello: Message) -> str:
        """The first message for the client of a session that begins here, from a worker's first message."""
        own: Message = {"session_id": self.id}
        if self.can_move:
            own["continuation"] = continuation.message(self.continuation)
        if self._is_moved:
            own |= {"resumed": True, "continued": True, "received_bytes": self.input.received_bytes}
            own["actions"] = self.input.actions
        if (configured := self.continuation.configured) is not None:
            own["use_server_vad"] = not configured.manual
            own["endpointing"] = configured.endpointing
        return json.dumps({**hello, **own})

    def issued(self, state: Continuation) -> bool:
        """True if this session issued the state, and not another one that the client has continued since."""
        return state.issuer == self.continuation.issuer

    def current_continuation(self) -> Message:
        """Return the newest continuation in the form of a message."""
        return continuation.message(self.continuation)

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    # -- from the client ---------------------------------------------------------------------------------------------

    def add_audio(self, pcm: bytes, now_s: float) -> None:
        """Add the next audio, and request a checkpoint if one is due."""
        self.input.add_audio(pcm, now_s)
        self._request_checkpoint_if_due()

    def _request_checkpoint_if_due(self) -> None:
        requested_s = self.input.seconds(self._checkpoint_requested)
        if self.input.seconds(self.input.buffer.end) - requested_s >= _CHECKPOINT_EVERY_S:
            self._request_checkpoint()

    def _request_checkpoint(self) -> None:
        if self.input.request_checkpoint():
            self._checkpoint_requested = self.input.buffer.end

    # -- a new connection to a worker --------------------------------------------------------------------------------

    def restarted(self, hello: Message) -> str | None:
        """Continue in a fresh worker. Returns the frame to send before all others, if there is one."""
        self.worker_session_id = str(hello["session_id"])
        self.unproductive_restarts += 1
        self._offset = Offset(self._finished_utterances, self.input.seconds(self.input.buffer.start))
        self._replayed_end = self.input.buffer.end
        self._pending_config = self.input.restart()
        if self._tells_speakers:
            self._notice = _SPEAKERS_RESTARTED
            self._speakers.restarted()
            for number, final in self._finals.items():  # no worker knows anything of their voices any more
                self._finals[number] = json.dumps({**json.loads(final), "speakers_settled": True})
        return self._pending_config

    def worker_query(self, began_s: float) -> dict[str, str]:
        """Return the parameters to add to the client's query. `began_s`: when the client's audio began."""
        own = {"began_s": str(began_s + self.input.held_from_s)}
        return own | {"first_speaker": str(self._speakers.first_unused)} if self._tells_speakers else own

    def take_notice(self) -> str | None:
        """Return once the notice that another worker has taken over, if the client needs it."""
        notice, self._notice = self._notice, None
        return notice

    def resumed(self, hello: Message) -> int:
        """Go on with the same worker after a broken connection. Returns how many bytes of audio are lost to it."""
        lost_bytes = self.input.resume(int(hello["received_bytes"]), hello.get("actions"))
        self._request_checkpoint()
        return lost_bytes

    def hello_for_client(self, hello: Message) -> str:
        """The first message for a client that came back, from a worker's first message."""
        resumed = {"resumed": True, "received_bytes": self.input.received_bytes}
        own = {name: value for name, value in hello.items() if name not in _WORKERS_OWN}
        if self.can_move:
            resumed["actions"] = self.input.actions
        return json.dumps({**own, "session_id": self.id, **resumed})

    def worker_utterance(self, received: int) -> int:
        """The last utterance whose final the client has, by the present worker's numbers."""
        return max(0, received - self._offset.utterances)

    def finals_after(self, received: int) -> list[str]:
        """Return the finals after utterance `received`, the last one that the client has."""
        return [final for number, final in self._finals.items() if received < number]

    # -- from the worker ---------------------------------------------------------------------------------------------

    def on_message(self, raw: str, now_s: float) -> str | None:
        """Return the message for the client in place of this message of the worker's, or None if it gets none."""
        message = json.loads(raw)
        if "text" in message:
            return self._final(message, raw, now_s) if message["is_final"] else self._partial(message, raw, now_s)
        if "words" in message or message.get("type") == TURN_LIKELY:
            return json.dumps(self._offset.applied(message))
        if message.get("type") == "speaker_update":
            return self._speaker_update(message)
        if "continuation" in message:
            return self._continuation(message["continuation"])
        kind = _ANSWERED_KINDS.get(message.get("status"))
        if kind is None:
            return raw
        return self._answer(kind, message, raw)

    def _continuation(self, issued: Message) -> str | None:
        """Return the worker's continuation as one of the session, or None where the client cannot use it."""
        worker, before = continuation.parse_state(issued["state"]), self.continuation
        first_speaker = max(worker.first_speaker, self._speakers.first_unused)
        self.continuation = replace(before, first_speaker=first_speaker)
        has = self.input.worker_has(issued["received_bytes"], issued["actions"])
        # A worker that took over may not have come as far yet as the one before it.
        if has is not None and before.received_bytes <= has[0] and before.actions <= has[1]:
            utterances = worker.utterances + self._offset.utterances
            self.continuation = replace(
                self.continuation,
                utterances=utterances,
                samples=worker.samples + round(self._offset.seconds * SAMPLE_RATE),
                received_bytes=has[0],
                actions=has[1],
                carried_over=self._shown.carried_over(utterances + 1),
                configured=worker.configured,
            )
        if self.continuation == before:
            return None
        return json.dumps({"status": "continuation", "continuation": self.current_continuation()})

    def _speaker_update(self, message: Message) -> str | None:
        """Return new labels of a text that the client has, with the session's number of the utterance."""
        number = message["utterance"] + self._offset.utterances
        runs = self._speakers.on_update(number, message["speakers"])
        if runs is None:
            return None
        changed = {"speakers": runs, "speakers_settled": message["speakers_settled"]}
        if number in self._finals:
            self._finals[number] = json.dumps({**json.loads(self._finals[number]), **changed})
        return json.dumps({**message, "utterance": number, **changed})

    def _answer(self, kind: ActionKind, message: Message, raw: str) -> str | None:
        if kind is ActionKind.CONFIG and self._pending_config is not None:
            self._pending_config = None
            return None
        for_client = self.input.on_answer(kind)
        if kind is ActionKind.CHECKPOINT:
            message = self._offset.applied(message)
            self._advance(message["utterance"], message["seconds"], forget=self.input.on_checkpoint)
            self._request_checkpoint_if_due()  # audio may have come while this request was under way
            return json.dumps(message) if for_client else None
        if kind is ActionKind.RESET and for_client:
            self._shown.reset()
            self._request_checkpoint()
        return raw if for_client else None

    def _partial(self, message: Message, raw: str, now_s: float) -> str | None:
        mapped = self._in_session_figures(message, now_s)
        if mapped["utterance"] <= self._finals_known:
            return None
        shown = self._shown.on_partial(mapped["utterance"], mapped["text"], mapped["committed"], mapped["end"])
        if shown is None:
            return None
        sent = {**mapped, "text": shown.text, "committed": shown.committed, "tentative": shown.tentative}
        sent |= self._runs(mapped, shown.committed)
        return raw if sent == message else json.dumps(sent)

    def _final(self, message: Message, raw: str, now_s: float) -> str | None:
        mapped = self._in_session_figures(message, now_s)
        number = mapped["utterance"]
        start, end = self.input.position(mapped["start"]), self.input.position(mapped["end"])
        if number in self._finals:  # repeated by a worker that was reached again, or the answer to a repeated flush
            if start == end:
                self.input.on_repeated_empty_final()
            return None
        is_known = number <= self._finals_known
        text = mapped["text"] if is_known else self._shown.on_final(number, mapped["text"])
        sent = {**mapped, "text": text, "committed": text} | self._runs(mapped, text)
        raw = raw if sent == message else json.dumps(sent)
        for_client = mapped["ending"] != "flush" or self.input.on_flush_answer(start, end)
        if start < end:
            self._advance(number, mapped["end"], forget=self.input.forget)
        if is_known or (not for_client and not text):
            return None
        self._finals[number] = raw
        if len(self._finals) > _FINALS_KEPT:
            self._finals.popitem(last=False)
        return raw

    # -- inside ------------------------------------------------------------------------------------------------------

    def _in_session_figures(self, message: Message, now_s: float) -> Message:
        """The message with the session's number and times, and the lag since the client's audio arrived."""
        mapped = self._offset.applied(message)
        end = min(self.input.position(mapped["end"]), self.input.buffer.end)  # times are rounded
        lag_ms = message["lag_ms"]
        if end <= self._replayed_end and (arrived_s := self.input.arrived_s(end)) is not None:
            lag_ms = max(lag_ms, s_to_ms(now_s - arrived_s))
        return {**mapped, "lag_ms": lag_ms}

    def _runs(self, mapped: Message, committed: str) -> Message:
        """Return the speakers of the committed text that the client gets, if the worker labels speakers."""
        if "speakers" not in mapped:
            return {}
        return {"speakers": self._speakers.on_text(mapped["utterance"], committed, mapped["speakers"])}

    def _advance(self, utterance: int, end_s: float, *, forget: Callable[[int], None]) -> None:
        """Note that utterances up to this one, and all audio before `end_s`, are finished."""
        before = self._finished_utterances, self.input.buffer.start
        forget(self.input.position(end_s))
        self._finished_utterances = max(self._finished_utterances, utterance)
        if (self._finished_utterances, self.input.buffer.start) != before:
            self.unproductive_restarts = 0
