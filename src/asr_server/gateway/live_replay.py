"""A live session over more than one worker: what a worker is sent again, and what the client gets. Pure.

The client sees one session: its utterance numbers and times continue, a committed word is never taken back, and no
utterance gets a second final. As long as one worker serves the session, its messages pass unchanged.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from asr_server.core.audio import s_to_ms
from asr_server.gateway.client_input import ActionKind, ClientInput
from asr_server.live.shown_speakers import ShownSpeakers
from asr_server.live.shown_text import ShownText

_CHECKPOINT_EVERY_S = 5.0  # of audio: so much silence is held at most beside an open utterance
_FINALS_KEPT = 256
_ANSWERED_KINDS = {
    "buffer_reset": ActionKind.RESET,
    "configured": ActionKind.CONFIG,
    "settled": ActionKind.CHECKPOINT,
}

Message = dict[str, Any]


class LiveReplay:
    """One session. `hello` is the first message of its first worker; the client knows the session by that id.

    Each worker counts utterances and seconds from its own beginning. The offsets turn its figures into the session's.
    """

    def __init__(self, hello: Message) -> None:
        self.id = self.worker_session_id = str(hello["session_id"])
        self.input = ClientInput(int(hello["sample_rate"]))
        self.unproductive_restarts = 0  # since the session last advanced
        self._checkpoint_requested = 0  # the position at which the gateway last asked for a checkpoint
        self._finished_utterances = 0  # up to the start of what is held
        self._utterance_offset = 0  # utterances before the present worker's first
        self._time_offset_s = 0.0
        self._replayed_end = 0  # up to this position the present worker got what another had got before
        self._pending_config: str | None = None  # sent by the gateway, so the client does not get its answer
        self._shown = ShownText()
        self._finals: OrderedDict[int, str] = OrderedDict()
        self._tells_speakers = "speakers" in hello
        self._speakers = ShownSpeakers()
        self._notice: str | None = None  # that another worker has taken over, where it makes a difference

    @property
    def log_name(self) -> str:
        """The part of the id that may be logged: who knows all of it may resume the session."""
        return self.id.partition(".")[0]

    # -- from the client ---------------------------------------------------------------------------------------------

    def add_audio(self, pcm: bytes, now_s: float) -> None:
        """The next audio."""
        self.input.add_audio(pcm, now_s)
        self._request_checkpoint_if_due()

    def _request_checkpoint_if_due(self) -> None:
        if self.input.seconds(self.input.buffer.end - self._checkpoint_requested) >= _CHECKPOINT_EVERY_S:
            self._request_checkpoint()

    def _request_checkpoint(self) -> None:
        if self.input.request_checkpoint():
            self._checkpoint_requested = self.input.buffer.end

    # -- a new connection to a worker --------------------------------------------------------------------------------

    def restarted(self, hello: Message) -> str | None:
        """A fresh worker takes over. Returns the frame to send before all others, if there is one."""
        self.worker_session_id = str(hello["session_id"])
        self.unproductive_restarts += 1
        self._utterance_offset = self._finished_utterances
        self._time_offset_s = self.input.seconds(self.input.buffer.start)
        self._replayed_end = self.input.buffer.end
        self._pending_config = self.input.restart()
        if self._tells_speakers:
            self._notice = json.dumps({"status": "speakers_restarted"})
            self._speakers.restarted()
            for number, final in self._finals.items():  # no worker knows anything of their voices any more
                self._finals[number] = json.dumps({**json.loads(final), "speakers_settled": True})
        return self._pending_config

    @property
    def worker_query(self) -> dict[str, str]:
        """What the next worker's query has besides the client's."""
        return {"first_speaker": str(self._speakers.first_unused)} if self._tells_speakers else {}

    def take_notice(self) -> str | None:
        """What the client is told when another worker has taken over; once."""
        notice, self._notice = self._notice, None
        return notice

    def resumed(self, hello: Message) -> int:
        """The same worker was reached again. Returns how many bytes of audio are lost to it."""
        lost_bytes = self.input.resume(int(hello["received_bytes"]))
        self._request_checkpoint()
        return lost_bytes

    def hello_for_client(self, hello: Message) -> str:
        """The first message for a client that came back, from a worker's first message."""
        resumed = {"resumed": True, "received_bytes": self.input.received_bytes}
        return json.dumps({**hello, "session_id": self.id, **resumed})

    def worker_utterance(self, received: int) -> int:
        """The last utterance whose final the client has, by the present worker's numbers."""
        return max(0, received - self._utterance_offset)

    def finals_after(self, received: int) -> list[str]:
        """The finals that a client lacks which has those up to utterance `received`."""
        return [final for number, final in self._finals.items() if received < number]

    # -- from the worker ---------------------------------------------------------------------------------------------

    def on_message(self, raw: str, now_s: float) -> str | None:
        """The message for the client in place of this one of the worker's; None for none."""
        message = json.loads(raw)
        if "text" in message:
            return self._final(message, raw, now_s) if message["is_final"] else self._partial(message, raw, now_s)
        if "words" in message:
            return self._words(message)
        if message.get("type") == "speaker_update":
            return self._speaker_update(message)
        kind = _ANSWERED_KINDS.get(message.get("status"))
        if kind is None:
            return raw
        return self._answer(kind, message, raw)

    def _words(self, message: Message) -> str:
        """The word times of a final, by the session's numbers and clock."""
        words = [
            {**word, "start": self._session_time_s(word["start"]), "end": self._session_time_s(word["end"])}
            for word in message["words"]
        ]
        return json.dumps({**message, "utterance": message["utterance"] + self._utterance_offset, "words": words})

    def _speaker_update(self, message: Message) -> str | None:
        """Other labels of a text that the client has, by the session's numbers."""
        number = message["utterance"] + self._utterance_offset
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
            message["utterance"] += self._utterance_offset
            message["seconds"] += self._time_offset_s
            self._advance(message["utterance"], message["seconds"], forget=self.input.on_checkpoint)
            self._request_checkpoint_if_due()  # audio may have come while this request was under way
            return json.dumps(message) if for_client else None
        if kind is ActionKind.RESET and for_client:
            self._shown.reset()
            self._request_checkpoint()
        return raw if for_client else None

    def _partial(self, message: Message, raw: str, now_s: float) -> str | None:
        mapped = self._in_session_figures(message, now_s)
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
        text = self._shown.on_final(number, mapped["text"])
        sent = {**mapped, "text": text, "committed": text} | self._runs(mapped, text)
        raw = raw if sent == message else json.dumps(sent)
        for_client = mapped["ending"] != "flush" or self.input.on_flush_answer(start, end)
        if start < end:
            self._advance(number, mapped["end"], forget=self.input.forget)
        if not for_client and not text:
            return None
        self._finals[number] = raw
        if len(self._finals) > _FINALS_KEPT:
            self._finals.popitem(last=False)
        return raw

    # -- inside ------------------------------------------------------------------------------------------------------

    def _session_time_s(self, worker_time_s: float) -> float:
        return round(worker_time_s + self._time_offset_s, 3)

    def _in_session_figures(self, message: Message, now_s: float) -> Message:
        """The message with the session's number and times, and the lag since the client's audio arrived."""
        end_s = self._session_time_s(message["end"])
        end = min(self.input.position(end_s), self.input.buffer.end)  # times are rounded
        lag_ms = message["lag_ms"]
        if end <= self._replayed_end and (arrived_s := self.input.arrived_s(end)) is not None:
            lag_ms = max(lag_ms, s_to_ms(now_s - arrived_s))
        return {
            **message,
            "utterance": message["utterance"] + self._utterance_offset,
            "start": self._session_time_s(message["start"]),
            "end": end_s,
            "lag_ms": lag_ms,
        }

    def _runs(self, mapped: Message, committed: str) -> Message:
        """The speakers of the committed text that the client gets, where they are told apart."""
        if "speakers" not in mapped:
            return {}
        return {"speakers": self._speakers.on_text(mapped["utterance"], committed, mapped["speakers"])}

    def _advance(self, utterance: int, end_s: float, *, forget: Callable[[int], None]) -> None:
        """Utterances up to this one, and all audio before `end_s`, are finished."""
        before = self._finished_utterances, self.input.buffer.start
        forget(self.input.position(end_s))
        self._finished_utterances = max(self._finished_utterances, utterance)
        if (self._finished_utterances, self.input.buffer.start) != before:
            self.unproductive_restarts = 0
