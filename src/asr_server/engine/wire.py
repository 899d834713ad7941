"""The messages between a server and its engine process, and the frames that carry them over a Unix socket.

A frame is a head (`_HEAD`: the kind of the message and two lengths), the samples of a row as float32, and the rest of
the message as JSON. The samples come first, so that they are aligned where they are received, which is where they stay.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, cast, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from asr_server import __version__
from asr_server.core.settings import EngineSettings, Settings
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignItem, Alignment, EngineInfo, Hypothesis, Utterance
from asr_server.schedule.model import EngineSnapshot, ModelState

# Kind of the message, bytes of samples, bytes of JSON.
_HEAD = struct.Struct("!BII")
# Eight minutes of audio; rows have two at most.
MOST_SAMPLE_BYTES = 32 * 1024 * 1024
# A thousand tokens take some 50 kB.
MOST_JSON_BYTES = 8 * 1024 * 1024
# The engine process publishes its state this often.
PUBLISH_S = 1.0
# Bytes read from a socket at once while no frame has begun.
_STAGE_BYTES = 64 * 1024

Samples = NDArray[np.float32]


def _without_audio(kind: type) -> type[Any]:
    """Return a copy of the dataclass `kind` without its `audio` field."""
    hints = get_type_hints(kind, localns={"np": np, "NDArray": NDArray})
    parts = [(one.name, hints[one.name], field(default=one.default)) for one in fields(kind) if one.name != "audio"]
    return make_dataclass(f"{kind.__name__}Fields", parts, frozen=True, slots=True)


_UtteranceFields, _AlignItemFields = _without_audio(Utterance), _without_audio(AlignItem)


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a server. Each version sends it as the first kind, with these fields."""

    settings: dict[str, str]  # as of `engine_settings`


@dataclass(frozen=True, slots=True)
class ServerRefused:
    """The engine takes no rows of this server, and ends the connection."""

    reason: str  # for users


@dataclass(frozen=True, slots=True)
class SubmitRow:
    """A job for the engine. Its item is an utterance, a span whose words are to be placed, or an item of a model that
    shares the engine's thread; with none of these, its model is loaded."""

    number: int  # of the job at the server
    priority: int  # a `Priority`
    cost_s: float
    model: str
    session: str
    queued_s: float  # when it came, monotonic: processes of one machine share that clock
    utterance: _UtteranceFields | None = None  # type: ignore[valid-type]  # a class that is made above
    align: _AlignItemFields | None = None  # type: ignore[valid-type]  # as above
    shared: dict[str, Any] | None = None  # as of `SharedModel.pack`


@dataclass(frozen=True, slots=True)
class CancelRow:
    """A row has lost its caller."""

    number: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The server holds a model in memory from now on, or no longer."""

    model: str
    live: bool  # for a live session
    held: bool


@dataclass(frozen=True, slots=True)
class RowStarted:
    """A row is in the batch."""

    number: int


@dataclass(frozen=True, slots=True)
class TokensSent:
    """A row has new tokens."""

    number: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


@dataclass(frozen=True, slots=True)
class RowError:
    """The error of a row."""

    code: str
    message: str
    param: str | None
    retry_after_s: int = 0  # of `Overloaded`


@dataclass(frozen=True, slots=True)
class RowFinished:
    """A row has left the queue or the batch, with a result or an error; with neither, its model is loaded. The samples
    are all that a row of a shared model has given out."""

    number: int
    started_s: float  # monotonic, 0 if it did not start
    ended_s: float  # monotonic, 0 if it did not start
    load_s: float  # the part of its wait that was for the model to be loaded
    hypothesis: Hypothesis | None = None
    alignment: Alignment | None = None
    shared: dict[str, Any] | None = None  # as of `SharedModel.pack`
    error: RowError | None = None


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state that the engine process publishes: about every `PUBLISH_S`, and soon after each change."""

    snapshot: EngineSnapshot
    infos: dict[str, EngineInfo]  # by the names of the models
    with_recordings_s: float  # as `EngineThread`
    load_moved_s: float | None  # as of `RequestClock`
    steps: tuple[tuple[int, float], ...]  # rows and seconds of each step since the last message
    changes: tuple[tuple[str, ModelState, float], ...]  # of the states of models since then, with their seconds


# The number of a kind is its place here.
Message = Hello | ServerRefused | SubmitRow | CancelRow | Lease | RowStarted | TokensSent | RowFinished | EngineState


def _adapter(kind: type) -> TypeAdapter[Any]:
    kind.__pydantic_config__ = ConfigDict(  # type: ignore[attr-defined]  # pydantic's name
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", extra="forbid"
    )
    return TypeAdapter(kind)


_KINDS = get_args(Message)
_ADAPTERS = tuple(map(_adapter, _KINDS))
_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}


class BadFrame(ValueError):
    """The bytes are no message, or a longer one than there are."""


def engine_settings(settings: Settings, resolved: Plan) -> dict[str, str]:
    """Return what a server and its engine must have in common, by name: the version and the settings of rows."""
    # A server whose engine is elsewhere needs no device of its own.
    names = {*EngineSettings.model_fields, "speech", "speech_clone_model"} - {"vllm_api_key", "device"}
    values = settings.model_dump(mode="json", include=names) | {"model_id": resolved.model_id, "version": __version__}
    return {name.upper(): json.dumps(value) for name, value in values.items()}


def _values(found: Any) -> dict[str, Any]:
    return {one.name: getattr(found, one.name) for one in fields(found) if one.name != "audio"}


def fields_of(item: Utterance | AlignItem) -> Any:
    """Return the fields of an item without its audio, as `SubmitRow` has them."""
    return (_UtteranceFields if isinstance(item, Utterance) else _AlignItemFields)(**_values(item))


def item_of(row: SubmitRow, samples: Samples) -> Utterance | AlignItem | None:
    """Return the item of a row: mono float32 (n,) at 16 kHz with its fields. None for a row that loads a model."""
    found: Any = row.utterance or row.align
    kind = Utterance if row.utterance is not None else AlignItem
    return kind(samples, **_values(found)) if found is not None else None


def frame(message: Message, samples: Samples | None = None) -> list[bytes | memoryview]:
    """Return the parts of the frame of a message, in the order in which they are written. Raises `BadFrame` for one
    that is too long."""
    number = _NUMBERS[type(message)]
    text = _ADAPTERS[number].dump_json(message)
    # A view of no samples cannot be cast.
    has_audio = samples is not None and len(samples) > 0
    audio = np.ascontiguousarray(samples, np.float32).data.cast("B") if has_audio else memoryview(b"")
    if len(text) > MOST_JSON_BYTES or audio.nbytes > MOST_SAMPLE_BYTES:
        raise BadFrame(f"{type(message).__name__} of {audio.nbytes} and {len(text)} bytes")
    return [_HEAD.pack(number, audio.nbytes, len(text)), audio, text]


class Frames(asyncio.BufferedProtocol):
    """One end of the socket, on an event loop. Samples are received where they stay.

    `on_message` gets each message with its samples, float32 (n,); what it raises ends the connection. `on_lost` is
    called once, when that has ended.
    """

    def __init__(self, on_message: Callable[[Message, Samples], None], on_lost: Callable[[], None]) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self.transport: asyncio.Transport | None = None
        self.broken: Exception | None = None  # what ended the connection from this side
        self._stage = bytearray(_STAGE_BYTES)
        self._staged = 0  # bytes of it that are no frame yet
        # The body of a frame that is longer than what was staged of it, and how much of it has come.
        self._body: NDArray[np.uint8] | None = None
        self._came = 0
        self._head = (0, 0, 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def send(self, message: Message, samples: Samples | None = None) -> None:
        """Write a message. What the peer does not read is kept by the transport: the sender bounds it."""
        assert self.transport is not None
        self.transport.writelines(frame(message, samples))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        if self._body is not None:
            return self._body.data[self._came :]
        return memoryview(self._stage)[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._body is None:
                self._staged += nbytes
                self._take_staged()
                return
            self._came += nbytes
            if self._came == len(self._body):
                body, self._body = self._body, None
                self._deliver(body)
        except Exception as error:  # the peer is at fault, or what takes its messages: both end the connection
            self.broken = error
            assert self.transport is not None
            self.transport.abort()

    def _take_staged(self) -> None:
        begin = 0
        while self._body is None and self._staged - begin >= _HEAD.size:
            self._head = kind, sample_bytes, json_bytes = _HEAD.unpack_from(self._stage, begin)
            if kind >= len(_KINDS) or sample_bytes > MOST_SAMPLE_BYTES or json_bytes > MOST_JSON_BYTES:
                raise BadFrame(f"kind {kind}, {sample_bytes} and {json_bytes} bytes")
            begin += _HEAD.size
            # Memory of its own for each: the samples of a row are kept.
            body = np.empty(sample_bytes + json_bytes, np.uint8)
            came = min(len(body), self._staged - begin)
            body[:came] = np.frombuffer(self._stage, np.uint8, came, begin)
            begin += came
            if came == len(body):
                self._deliver(body)
            else:
                self._body, self._came = body, came
        self._stage[: self._staged - begin] = self._stage[begin : self._staged]
        self._staged -= begin

    def _deliver(self, body: NDArray[np.uint8]) -> None:
        kind, sample_bytes, _ = self._head
        try:
            message = _ADAPTERS[kind].validate_json(body[sample_bytes:].tobytes())
        except ValidationError:  # its text has what the peer sent, which no log line may have
            raise BadFrame(f"no {_KINDS[kind].__name__}") from None
        self._on_message(message, body[:sample_bytes].view(np.float32))
