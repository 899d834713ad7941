"""A place from which another server can go on with a live session. Its client carries it there. Data only."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from asr_server.core.errors import InvalidValue, MalformedBody
from asr_server.live.actions import TURN_LIKELY
from asr_server.live.options import SessionBegin
from asr_server.net import websocket_io
from asr_server.recordings.requests import MAX_TEXT_CHARS
from asr_server.text.stable_merge import unit_count

Message = dict[str, Any]
Run = Mapping[str, str | None]  # {"speaker", "text"}: text of one speaker


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """The settings that a client may change in the middle of a session."""

    language: str = ""  # the model's name of it, "" for none
    hotwords: str = ""
    manual: bool = False
    semantic: bool | None = None  # a pause is judged by what was said, or by its length alone; None: as the server does

    @property
    def endpointing(self) -> str:
        """Return the same in the words of a query."""
        if self.manual:
            return "manual"
        return {True: "semantic", False: "pause", None: "auto"}[self.semantic]


@dataclass(frozen=True, slots=True)
class Continuation(SessionBegin):
    """A place in a session, with all that another server needs to go on there. The order of fields is that of the
    state on the wire."""

    carried_over: str = ""  # words that the client was shown before their audio moved into the next utterance
    first_speaker: int = 0  # the index of the first letter that no speaker has
    configured: TurnSettings | None = None  # by the client; None for what its query says


@dataclass(frozen=True, slots=True)
class ShownUtterance:
    """The text that the client has been shown of an utterance without a final."""

    utterance: int = 0  # its number; 0 for none
    committed: str = ""
    end_s: float = 0.0  # the end of the audio that the committed words are based on
    speakers: tuple[Run, ...] = ()  # whose words they are


@dataclass(frozen=True, slots=True)
class Offset:
    """The number of utterances and seconds before a session's own first ones."""

    utterances: int = 0
    seconds: float = 0.0

    def time_s(self, seconds: float) -> float:
        """Return a time of the session's own as one of the whole."""
        return round(seconds + self.seconds, 3)

    def applied(self, message: Message) -> Message:
        """Return the message by the numbers and times of the whole."""
        mapped = dict(message)
        if "utterance" in message:
            mapped["utterance"] += self.utterances
        if "text" in message:
            mapped |= self._times(message)
        if "words" in message:
            mapped["words"] = [{**word, **self._times(word)} for word in message["words"]]
        if message.get("type") == TURN_LIKELY:
            mapped["end"] = self.time_s(message["end"])
        if message.get("status") == "settled":
            mapped["seconds"] += self.seconds
        return mapped

    def _times(self, timed: Message) -> Message:
        return {"start": self.time_s(timed["start"]), "end": self.time_s(timed["end"])}


_VERSION = 1
# Hotwords in their longest spelling. Otherwise a state has some hundred characters.
MAX_STATE_CHARS = 160 * 1024
MAX_FRAME_CHARS = 192 * 1024
MAX_SHOWN_CHARS = 2_000
_MAX_SHOWN_UNITS = 600  # comparing them with a new text takes about 30 ms on the event loop
_FRAME_S = 10.0  # for the first frame to come
MOST = 10**9
_MOST_BYTES = 2**53  # JavaScript counts up to there
_MOST_SPEAKERS = 20_000

Parsed = TypeVar("Parsed", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _TurnSettings(_Strict):
    language: str = Field(max_length=100)
    hotwords: str = Field(max_length=MAX_TEXT_CHARS)
    manual: bool
    semantic: bool | None = None


class _State(_Strict):
    version: Literal[1]
    session_id: str = Field(pattern="^live_[0-9A-Za-z._-]{1,60}$")
    issuer: str = Field(pattern="^[0-9a-f]{16}$")
    utterances: int = Field(ge=0, le=MOST)
    samples: int = Field(ge=0, le=_MOST_BYTES)
    received_bytes: int = Field(ge=0, le=_MOST_BYTES)
    actions: int = Field(ge=0, le=MOST)
    carried_over: str = Field(max_length=MAX_SHOWN_CHARS)
    first_speaker: int = Field(ge=0, le=_MOST_SPEAKERS)
    configured: _TurnSettings | None
    in_speech: bool = False


class _Run(_Strict):
    speaker: str | None = Field(max_length=200)
    text: str = Field(max_length=MAX_SHOWN_CHARS)


class _Frame(BaseModel):
    """The first frame of a client that continues a session. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)

    action: Literal["continue"]
    state: str = Field(max_length=MAX_STATE_CHARS)
    utterance: int = Field(0, ge=0, le=MOST)
    committed: str = Field("", max_length=MAX_SHOWN_CHARS)
    end: float = Field(0.0, ge=0, le=MOST, allow_inf_nan=False)
    speakers: list[_Run] = Field([], max_length=MAX_SHOWN_CHARS)


@dataclass(frozen=True, slots=True)
class ContinueRequest:
    """The session that a client continues, and what it has been shown."""

    state: Continuation
    shown: ShownUtterance


def wire_message(state: Continuation) -> Message:
    """The field `continuation` of a message."""
    carried = state.carried_over if len(state.carried_over) <= MAX_SHOWN_CHARS else ""
    fields = {"version": _VERSION, **asdict(state), "carried_over": carried}
    if not state.in_speech:  # servers of before do not know it
        del fields["in_speech"]
    raw = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    encoded = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
    return {"state": encoded, "received_bytes": state.received_bytes, "actions": state.actions}


def parse_state(encoded: str) -> Continuation:
    """The state of a continuation. Raises `InvalidValue`."""
    try:
        if len(encoded) > MAX_STATE_CHARS:
            raise ValueError("too long")
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        state = _parsed(_State, raw.decode())
    except (ValueError, RecursionError, binascii.Error):  # a `ValidationError` is a `ValueError`
        raise InvalidValue("The state is not one that a server issued, or of another version.", param="state") from None
    fields = state.model_dump(exclude={"version", "configured"})
    configured = TurnSettings(**state.configured.model_dump()) if state.configured is not None else None
    return Continuation(**fields, configured=configured)


def parse_frame(text: str, session_id: str, received: int) -> ContinueRequest:
    """The frame `continue` for this session. `received`: the last utterance whose final the client has.

    Raises `MalformedBody` for no JSON, `InvalidValue` for a wrong field.
    """
    frame = parsed_frame(_Frame, text, MAX_FRAME_CHARS)
    state = parse_state(frame.state)
    if state.session_id != session_id:
        raise InvalidValue("The state is that of another session.", param="state")
    if unit_count(frame.committed) > _MAX_SHOWN_UNITS:
        return ContinueRequest(state, ShownUtterance())
    runs: tuple[Run, ...] = tuple(run.model_dump() for run in frame.speakers)
    if "".join(run["text"] or "" for run in runs) != frame.committed:
        runs = ({"speaker": None, "text": frame.committed},) if frame.committed else ()
    return ContinueRequest(state, ShownUtterance(frame.utterance or received + 1, frame.committed, frame.end, runs))


async def read_frame(socket: WebSocket, session_id: str, received: int) -> ContinueRequest:
    """The first frame of a client that continues this session, parsed as `parse_frame` does.

    Raises `InvalidInput`, and `WebSocketDisconnect` if the client leaves instead.
    """
    return parse_frame(await first_text(socket), session_id, received)


async def first_text(socket: WebSocket) -> str:
    """The first frame of a client that continues a session. Raises `MalformedBody`, and `WebSocketDisconnect`."""
    try:
        async with asyncio.timeout(_FRAME_S):
            first = await socket.receive()
    except TimeoutError:
        raise MalformedBody("The first frame, which continues the session, did not come in time.") from None
    if first["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(first.get("code", 1006))
    return first.get("text") or ""


def parsed_frame(model: type[Parsed], text: str, most_chars: int) -> Parsed:
    """A frame as this model. Raises `MalformedBody` for no JSON, `InvalidValue` for a wrong field."""
    if len(text) > most_chars:
        raise MalformedBody("The message is too long.")
    try:
        return _parsed(model, text)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][0]) if first["loc"] else "action"
        raise InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param) from None
    except (ValueError, RecursionError):
        raise MalformedBody("The message is not valid JSON in UTF-8, or has too many values.") from None


def _parsed(model: type[Parsed], text: str) -> Parsed:
    """Raises `ValueError` and `RecursionError`."""
    values = websocket_io.parse_json(text)
    json.dumps(values, ensure_ascii=False).encode()  # JSON may hold halves of characters, which no model can read
    return model.model_validate(values)
