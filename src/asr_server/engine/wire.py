"""The messages between a server and its engine process, over a Unix socket.

They use the frames of `processes/messages.py`: JSON, then the samples of a row as float32. Received samples are not
copied. Spaces after the JSON align them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from asr_server import __version__
from asr_server.core.settings import EngineSettings, Settings
from asr_server.engine.feature import Plan
from asr_server.engine.protocol import AlignItem, Alignment, EngineInfo, Hypothesis, Samples, Tokens, Utterance
from asr_server.processes import messages
from asr_server.schedule.model import EngineSnapshot, ModelState

# The engine process publishes its state this often.
PUBLISH_S = 1.0
# Bytes read from a socket at once, unless a frame is longer.
_STAGE_BYTES = 64 * 1024
_SAMPLE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a server. It has these fields in every version."""

    settings: dict[str, str]  # from `engine_settings`
    kind: Literal["Hello"] = "Hello"


@dataclass(frozen=True, slots=True)
class ServerRefused:
    """The engine takes no rows from this server, and ends the connection."""

    reason: str  # for users
    kind: Literal["ServerRefused"] = "ServerRefused"


@dataclass(frozen=True, slots=True)
class SubmitRow:
    """A job for the engine, followed by its samples. Its item is an utterance, a span whose words are to be placed in
    time, or an item of a model that shares the engine's thread. A job without an item loads its model."""

    number: int  # the server's key of the job
    priority: int  # a `Priority`
    cost_s: float
    model: str
    session: str
    queued_s: float  # when it arrived, monotonic: processes of one machine share that clock
    utterance: Utterance | None = None
    align: AlignItem | None = None
    shared: dict[str, Any] | None = None  # as of `SharedModel.pack`
    kind: Literal["SubmitRow"] = "SubmitRow"


@dataclass(frozen=True, slots=True)
class CancelRow:
    """The caller of a row has cancelled it."""

    number: int
    kind: Literal["CancelRow"] = "CancelRow"


@dataclass(frozen=True, slots=True)
class Lease:
    """The server holds a model in memory from now on, or no longer."""

    model: str
    live: bool  # for a live session
    held: bool
    kind: Literal["Lease"] = "Lease"


@dataclass(frozen=True, slots=True)
class RowStarted:
    """A row is in the batch."""

    number: int
    kind: Literal["RowStarted"] = "RowStarted"


@dataclass(frozen=True, slots=True)
class TokensSent:
    """A row has new tokens."""

    number: int
    tokens: Tokens
    kind: Literal["TokensSent"] = "TokensSent"


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
    after it are the whole output of a row of a shared model."""

    number: int
    started_s: float  # monotonic, 0 if it did not start
    ended_s: float  # monotonic, 0 if it did not start
    load_s: float  # the part of its wait that was for the model to be loaded
    hypothesis: Hypothesis | None = None
    alignment: Alignment | None = None
    shared: dict[str, Any] | None = None  # as of `SharedModel.pack`
    error: RowError | None = None
    kind: Literal["RowFinished"] = "RowFinished"


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state that the engine process publishes: about every `PUBLISH_S`, and soon after each change."""

    snapshot: EngineSnapshot
    infos: dict[str, EngineInfo]  # by the names of the models
    with_recordings_s: float  # as in `EngineThread`
    load_moved_s: float | None  # as in `RequestClock`
    steps: tuple[tuple[int, float], ...]  # rows and seconds of each step since the last message
    changes: tuple[tuple[str, ModelState, float], ...]  # of models' states since then, with their seconds
    kind: Literal["EngineState"] = "EngineState"


Message = Hello | ServerRefused | SubmitRow | CancelRow | Lease | RowStarted | TokensSent | RowFinished | EngineState
_MESSAGES: TypeAdapter[Message] = TypeAdapter(
    Annotated[Message, Field(discriminator="kind")],
    config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", extra="forbid"),
)


def engine_settings(settings: Settings, resolved: Plan) -> dict[str, str]:
    """Return the values that a server and its engine must share, by name: the version and the settings of rows."""
    # A server whose engine is elsewhere needs no device of its own.
    names = {*EngineSettings.model_fields, "speech", "speech_clone_model"} - {"vllm_api_key", "device"}
    models = ",".join((resolved.model_id, *settings.model_names[1:]))
    values = settings.model_dump(mode="json", include=names) | {"model_id": models, "version": __version__}
    return {name.upper(): json.dumps(value) for name, value in values.items()}


def frame(message: Message, samples: Samples | None = None) -> list[bytes | memoryview]:
    """Return the parts of the frame of a message, in the order in which they are written. Raises ValueError if it is
    too long."""
    text = _MESSAGES.dump_json(message)
    text += b" " * (-len(text) % _SAMPLE_BYTES)  # so that the samples are aligned where they are received
    # A view of no samples cannot be cast.
    has_audio = samples is not None and len(samples) > 0
    audio = np.ascontiguousarray(samples, np.float32).data.cast("B") if has_audio else memoryview(b"")
    return [messages.header(len(text), audio.nbytes), text, audio]


class Frames(asyncio.BufferedProtocol):
    """One end of the socket, on an event loop.

    `on_message` gets each message with its samples, float32 (n,). An exception from it ends the connection. `on_lost`
    is called once, when the connection has ended.
    """

    transport: asyncio.Transport  # set by `connection_made`, which asyncio calls first

    def __init__(self, on_message: Callable[[Message, Samples], None], on_lost: Callable[[], None]) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self.broken: Exception | None = None  # the error with which this side ended the connection
        self._buffer = bytearray(_STAGE_BYTES)  # begins with a frame that is not complete yet
        self._filled = 0  # its received bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def send(self, message: Message, samples: Samples | None = None) -> None:
        """Write a message. The transport keeps unread bytes, which the sender has to bound."""
        self.transport.writelines(frame(message, samples))

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            self._take_frames()
        except Exception as error:  # of an invalid message or of `on_message`: both end the connection
            self.broken = error
            self.transport.abort()

    def _take_frames(self) -> None:
        begin, next_bytes = 0, 0
        while self._filled - begin >= (head_bytes := messages.HEADER.size):
            text_bytes, sample_bytes = messages.sizes(self._buffer[begin : begin + head_bytes])
            next_bytes = head_bytes + text_bytes + sample_bytes
            if self._filled - begin < next_bytes:
                break
            samples_at = begin + head_bytes + text_bytes
            try:
                message = _MESSAGES.validate_json(self._buffer[begin + head_bytes : samples_at])
            except ValidationError:  # its text quotes the message, which must not be logged
                raise ValueError("no message") from None
            samples = memoryview(self._buffer)[samples_at : begin + next_bytes]
            self._on_message(message, np.frombuffer(samples, np.float32))
            begin, next_bytes = begin + next_bytes, 0  # several frames may have come at once
        if begin or next_bytes > len(self._buffer):
            # Copy the rest into a new buffer: the samples of rows stay in the old one.
            rest = self._buffer[begin : self._filled]
            self._buffer, self._filled = bytearray(max(_STAGE_BYTES, next_bytes)), len(rest)
            self._buffer[: len(rest)] = rest
