"""A realtime conversation as a pure state machine: live messages in, server events out.

It holds what the protocol adds to a live session: items with ids and an order, deltas that add up, and which utterances
make one turn. With voice detection, a turn is an utterance, so a cut at the maximum length ends one turn and begins the
next at the same millisecond. Without it, a turn is all utterances up to the commit, however often they were cut.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asr_server.core.audio import samples_to_s, samples_to_whole_ms
from asr_server.core.errors import AsrError, InvalidInput
from asr_server.core.transcript import Token
from asr_server.features.realtime.config import Config
from asr_server.live.machine.events import (
    Configured,
    Ending,
    Final,
    Partial,
    ResetDone,
    SessionError,
    UtteranceEnded,
    UtteranceStarted,
)
from asr_server.live.outbox import Message
from asr_server.net.errors import CodedError, Json, error_object, realtime_error
from asr_server.text import languages, scripts

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_ITEMS_KEPT = 4_096  # an hour of turns of a second each
# Keys of a session that are sent as null; other keys without a value are omitted.
_NULLABLE = frozenset({"transcription", "noise_reduction", "turn_detection", "include", "language"})


def session_body(config: Config, session_id: str, expires_at: int) -> Json:
    """Return the session with its effective configuration, as clients see it. `expires_at`: in Unix seconds."""
    return {
        "type": "transcription",
        "object": "realtime.transcription_session",
        "id": session_id,
        "expires_at": expires_at,
        "audio": {"input": _without_nulls(config.input.model_dump())},
        "include": config.include,
    }


def _without_nulls(values: Mapping[str, Any]) -> Json:
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None or name in _NULLABLE
    }


@dataclass(slots=True, eq=False)
class _Turn:
    """One item from its first audio to its transcript."""

    item_id: str
    config: Config
    announced: bool  # `speech_started` was sent, so `speech_stopped` is sent too
    last_utterance: int | None = None  # known once the turn is committed
    texts: list[str] = field(default_factory=list)
    sent: str = ""
    samples: int = 0
    tokens: list[Token] = field(default_factory=list)
    languages: list[str] = field(default_factory=list)
    error: SessionError | None = None
    dropped: bool = False


class Conversation:
    """Pass the messages of the live session to `on_message`; it returns the events to send, in order.

    Every event has an id of its own.
    """

    def __init__(self, config: Config, session_id: str, expires_at: int) -> None:
        self._config = config
        self._session_id, self._expires_at = session_id, expires_at
        self._pending_configs: deque[Config] = deque()
        self._token = secrets.token_hex(6)
        self._events = self._turns = 0
        self._open: _Turn | None = None
        self.turn_of: dict[int, _Turn] = {}  # the turn of each utterance without a final
        self._items: dict[str, Json] = {}

    # -- for the socket ----------------------------------------------------------------------------------------------

    def created(self) -> Json:
        return self._session("created", self._config)

    def updated(self, config: Config) -> Json:
        """Return the answer to an update. The update applies once the live session has sent `Configured`."""
        self._pending_configs.append(config)
        return self._session("updated", config)

    def error(self, error: AsrError, event_id: str | None = None) -> Json:
        """Return an error after which the connection stays open. `event_id`: the client's event at fault."""
        return self._event("error", error=realtime_error(error, event_id))

    def unfinished(self, error: AsrError) -> list[Json]:
        """Return the events for committed items that will get no transcript because of this error."""
        turns = dict.fromkeys(turn for turn in self.turn_of.values() if turn.last_utterance is not None)
        return [self._failed(turn, error) for turn in turns if self._reports(turn)]

    def retrieved(self, item_id: str) -> Json:
        """Return an item in its present state. Raises `item_not_found`."""
        return self._event("conversation.item.retrieved", item=self._item(item_id))

    def deleted(self, item_id: str) -> Json:
        """Forget an item; its transcript still comes, if it has none yet. Raises `item_not_found`."""
        del self._items[self._item(item_id)["id"]]
        return self._event("conversation.item.deleted", item_id=item_id)

    def on_message(self, message: Message) -> list[Json]:
        """Return the events that follow from a message."""
        match message:
            case UtteranceStarted():
                return self._started(message)
            case Partial(utterance=number, committed=committed):
                return self._delta(self.turn_of[number], committed)
            case UtteranceEnded():
                return self._stopped(message)
            case Final():
                return self._final(message)
            case ResetDone(utterance=discarded):
                return self._reset_done(discarded)
            case Configured():
                self._config = self._pending_configs.popleft()
        return []

    # -- turns -------------------------------------------------------------------------------------------------------

    @property
    def _by_commit(self) -> bool:
        return self._config.input.turn_detection is None

    def _started(self, started: UtteranceStarted) -> list[Json]:
        if self._open is not None:  # the turn was cut, and continues
            self.turn_of[started.utterance] = self._open
            return []
        turn = self._open = self.turn_of[started.utterance] = self._turn(announced=not self._by_commit)
        if not turn.announced:
            return []
        start_ms = samples_to_whole_ms(started.start_samples)
        return [self._event("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=turn.item_id)]

    def _turn(self, *, announced: bool) -> _Turn:
        self._turns += 1
        return _Turn(f"item_{self._token}_{self._turns}", self._config, announced)

    def _stopped(self, stopped: UtteranceEnded) -> list[Json]:
        turn = self.turn_of.get(stopped.utterance)
        if turn is None:  # a commit while nobody speaks; a turn that was cut in a pause is still open
            turn = self.turn_of[stopped.utterance] = self._open or self._turn(announced=False)
        turn.samples += stopped.end_samples - stopped.start_samples
        if stopped.ending is Ending.CUT and self._by_commit:
            return []
        self._open = None
        events = []
        if turn.announced:
            end_ms = samples_to_whole_ms(stopped.end_samples)
            events = [self._event("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=turn.item_id)]
        return events + self._commit(turn, stopped.utterance)

    def _commit(self, turn: _Turn, last_utterance: int) -> list[Json]:
        turn.last_utterance = last_utterance
        previous = next(reversed(self._items), None)
        item = {
            "id": turn.item_id,
            "object": "realtime.item",
            "type": "message",
            "role": "user",
            "status": "completed",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        self._items[turn.item_id] = item
        if len(self._items) > _ITEMS_KEPT:
            del self._items[next(iter(self._items))]
        committed = self._event("input_audio_buffer.committed", item_id=turn.item_id, previous_item_id=previous)
        events = [
            self._event(f"conversation.item.{n}", item=item, previous_item_id=previous) for n in ("added", "done")
        ]
        return [committed, *events]

    def _reset_done(self, discarded: int | None) -> list[Json]:
        self.turn_of.pop(discarded or 0, None)
        if self._open is not None:
            self._open.dropped = True
            self._open = None
        return [self._event("input_audio_buffer.cleared")]

    # -- transcripts -------------------------------------------------------------------------------------------------

    def _final(self, final: Final) -> list[Json]:
        turn = self.turn_of.pop(final.utterance)
        events = self._delta(turn, final.text)
        turn.texts.append(final.text)
        turn.tokens += final.tokens
        turn.error = turn.error or final.error
        code = languages.code(final.language)
        if code and code not in turn.languages:
            turn.languages.append(code)
        if final.utterance == turn.last_utterance:
            events += self._finished(turn)
        return events

    def _delta(self, turn: _Turn, text: str) -> list[Json]:
        """Return the delta with the words of the turn not sent yet. `text`: the utterance's committed words."""
        known = scripts.join([*turn.texts, text])
        fresh = known[len(turn.sent) :]
        if not fresh or not self._reports(turn) or not known.startswith(turn.sent):
            return []
        turn.sent = known
        return [self._event(f"{_TRANSCRIPTION}.delta", item_id=turn.item_id, content_index=0, delta=fresh)]

    def _finished(self, turn: _Turn) -> list[Json]:
        if not self._reports(turn):
            return []
        if turn.error is not None:
            return [self._failed(turn, turn.error)]
        transcript = scripts.join(turn.texts)
        if turn.item_id in self._items:
            part = {"type": "input_audio", "transcript": transcript}
            self._items[turn.item_id] = {**self._items[turn.item_id], "content": [part]}
        done = {
            "item_id": turn.item_id,
            "content_index": 0,
            "transcript": transcript,
            "usage": {"type": "duration", "seconds": round(samples_to_s(turn.samples), 3)},
            "languages": [{"code": code} for code in turn.languages],
        }
        if turn.config.logprobs:
            done["logprobs"] = _logprobs(turn.tokens)
        return [self._event(f"{_TRANSCRIPTION}.completed", **done)]

    def _failed(self, turn: _Turn, error: CodedError) -> Json:
        return self._event(f"{_TRANSCRIPTION}.failed", item_id=turn.item_id, content_index=0, error=error_object(error))

    def _reports(self, turn: _Turn) -> bool:
        return not turn.dropped and turn.config.input.transcription is not None

    # -- events ------------------------------------------------------------------------------------------------------

    def _event(self, name: str, **fields: Any) -> Json:
        self._events += 1
        return {"type": name, "event_id": f"event_{self._token}_{self._events}", **fields}

    def _session(self, what: str, config: Config) -> Json:
        return self._event(f"session.{what}", session=session_body(config, self._session_id, self._expires_at))

    def _item(self, item_id: str) -> Json:
        if item_id not in self._items:
            raise InvalidInput("The conversation has no item of this id.", code="item_not_found", param="item_id")
        return self._items[item_id]


def _logprobs(tokens: list[Token]) -> list[Json]:
    return [
        {"token": t.written.decode(errors="replace"), "logprob": t.logprob, "bytes": list(t.written)} for t in tokens
    ]
