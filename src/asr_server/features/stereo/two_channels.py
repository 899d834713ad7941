"""Two channels over one live socket: a session for each, whose messages say which of the two speaks.

Both are sessions of one channel, which the server or the gateway serves as any other. This divides the audio, joins the
answers to actions, and gives the utterances of channel 1 odd numbers and those of channel 2 even ones.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from asr_server.core.errors import InvalidInput, InvalidValue, SessionNotFound
from asr_server.features.handover.continuation import (
    MAX_FRAME_CHARS,
    MAX_STATE_CHARS,
    MOST,
    first_text,
    parsed_frame,
)
from asr_server.live.actions import parse_action, parse_query
from asr_server.live.machine.cutting import WholeSamples, pieces
from asr_server.net import websocket_io
from asr_server.net.errors import live_error_message
from asr_server.net.loop_time import TimeSlice
from asr_server.net.shared_bytes import PIECE_BYTES
from asr_server.net.websocket_io import DISCARD, MOVED
from asr_server.schedule.quota import Place

Json = dict[str, Any]
Endpoint = Callable[[WebSocket], Awaitable[None]]

NAMES = ("A", "B")
CHANNELS = len(NAMES)
_FRAME_BYTES = 4  # a sample of each channel
_BETWEEN = "~"  # stands between the ids of both sessions, and between their states
_REPLACED = {"channels", "speakers", "session_id", "received"}  # in the query of each session
_OF_CHANNEL = {"received_bytes", "actions", "continued", "continuation"}  # in its first message
_JOINED = {"buffer_reset", "configured", "settled", "reconnect"}  # messages that the client gets once
# What stands for the answer to an action that a session has answered before: it is sent to the other one alone.
_ANSWERED_BEFORE: dict[str, Json] = {
    "reset": {"status": "buffer_reset"},
    "config": {"status": "configured"},
    "settled": {"status": "settled", "seconds": 0.0, "utterance": 0},
}
_SHUTDOWN, _BROKEN, _FAILED, _TRY_AGAIN = 1001, 1006, 1011, 1013
_MOST_DIGITS = 18
_END_S = 30.0  # for the last finals of a channel at a shutdown


class _Shown(BaseModel):
    """The part of the open utterance of one channel that the client was shown, as in the frame of one session.

    The session of the channel checks it.
    """

    model_config = ConfigDict(strict=True)

    utterance: int = Field(default=0, ge=0, le=MOST)
    committed: str = ""
    end: float = Field(default=0.0, allow_inf_nan=False)


class _Frame(BaseModel):
    """The first frame of a client that continues a session with two channels. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)

    action: Literal["continue"]
    state: str = Field(max_length=CHANNELS * (MAX_STATE_CHARS + 1))
    channels: list[_Shown] = Field(default=[], max_length=CHANNELS)


def joined_continuation(first: Json, second: Json) -> Json:
    """The field `continuation`: from the first frame and the first action on that either channel needs."""
    whole_bytes = min(first["received_bytes"], second["received_bytes"]) // 2 * 2
    return {
        "state": _BETWEEN.join([first["state"], second["state"]]),
        "received_bytes": CHANNELS * whole_bytes,
        "actions": min(first["actions"], second["actions"]),
    }


def frames_of_channels(text: str) -> list[str]:
    """The first frame of the session of each channel. Raises `MalformedBody` and `InvalidValue`."""
    frame = parsed_frame(_Frame, text, CHANNELS * MAX_FRAME_CHARS)
    states = frame.state.split(_BETWEEN)
    if len(states) != CHANNELS:
        raise InvalidValue("The state is not that of a session with two channels.", param="state")
    shown = [*frame.channels, *(CHANNELS - len(frame.channels)) * [_Shown()]]
    return [
        json.dumps(
            {
                **{"action": frame.action, "state": state, "committed": one.committed, "end": one.end},
                **{"utterance": own_number(one.utterance, channel)},
            }
        )
        for channel, (state, one) in enumerate(zip(states, shown, strict=True))
    ]


def own_number(number: int, channel: int) -> int:
    """The number of an utterance in the session of its channel; of a number of the other channel, the last before."""
    return (number + 1 - channel) // CHANNELS


def common_number(number: int, channel: int) -> int:
    """The number of an utterance of this channel among those of both."""
    return CHANNELS * number - 1 + channel


def asked_for(client: WebSocket) -> bool:
    """True if the query of this socket asks for two channels."""
    return client.query_params.get("channels") == str(CHANNELS)


def endpoint(one: Endpoint) -> Endpoint:
    """Return an endpoint for sockets of one channel, which `one` serves, and for those of two."""

    async def serve_channel(scope: Scope, receive: Receive, send: Send) -> None:
        await one(WebSocket(scope, receive, send))

    async def serve_socket(socket: WebSocket) -> None:
        if not asked_for(socket):
            await one(socket)
            return
        await socket.accept()
        await websocket_io.serve(socket, serve(socket, serve_channel), live_error_message)

    return serve_socket


async def serve(client: WebSocket, one: ASGIApp) -> None:
    """One connection; `one` serves a socket of one channel. Raises `InvalidInput`, `SessionNotFound`, and
    `WebSocketDisconnect` if a client leaves that was to say from where it continues."""
    queries = list(_queries(client.scope))
    connection = _Connection(client, one, queries, await _first_frames(client))
    try:
        await connection.run()
    finally:
        await connection.cancel()


def _queries(scope: Scope) -> Iterator[str]:
    """The query of each channel's session."""
    given = parse_qsl(scope["query_string"].decode("latin-1"))
    values = dict(given)
    kept = [(name, value) for name, value in given if name not in _REPLACED]
    identity = values.get("session_id", "")
    if not identity:
        yield from (urlencode(kept) for _ in NAMES)
        return
    received = (values.get("received") or "0,0").split(",")
    if len(received) != CHANNELS or not all(number.isascii() and number.isdigit() for number in received):
        raise InvalidValue("With two channels 'received' has the last final of each: '5,4'.", param="received")
    sessions = identity.split(_BETWEEN)
    if len(set(sessions)) != CHANNELS or len(sessions) != CHANNELS:
        raise SessionNotFound("This is no id of a session with two channels; open a new one.", param="session_id")
    for channel, (session, last) in enumerate(zip(sessions, received, strict=True)):
        number = own_number(int(last[:_MOST_DIGITS]), channel)
        yield urlencode([*kept, ("session_id", session), ("received", str(number))])


async def _first_frames(client: WebSocket) -> list[str]:
    """The first frame of the session of each channel, where the client continues them; else none."""
    given = client.query_params
    if not (given.get("session_id") and parse_query({"handover": given.get("handover", "")}).handover):
        return []
    if client.application_state is WebSocketState.CONNECTING:
        await client.accept()
    return frames_of_channels(await first_text(client))


class _SharedPlace:
    """The caller's place, which both sessions keep together and lose together."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._evict: dict[str, Callable[[], None]] = {}
        self._kept = ExitStack()

    @contextmanager
    def kept(self, session: str, evict: Callable[[], None]) -> Iterator[None]:
        """As `Place.kept`, for one of the two."""
        self._evict[session] = evict
        if len(self._evict) == CHANNELS:
            self._kept.enter_context(self._place.kept(_BETWEEN.join(self._evict), self._evict_both))
        try:
            yield
        finally:
            self._evict.pop(session)
            self._kept.close()

    def _evict_both(self) -> None:
        for evict in list(self._evict.values()):
            evict()


class _Channel:
    """The session of one channel, behind a socket that exists in this process alone. `closed`: how it was closed.
    `continuation`: its newest one, None while it has said none."""

    def __init__(
        self, number: int, scope: Scope, one: ASGIApp, pass_on: Callable[[_Channel, Message], Awaitable[None]]
    ):
        self.number = number
        self.name = NAMES[number]
        self.hello: Json | None = None
        self.continuation: Json | None = None
        self.skip_bytes = self.skip_actions = 0  # of its audio and of the actions: it has them already
        self.answers: dict[str, deque[Json]] = {status: deque() for status in _JOINED}  # the other channel owes its own
        self.closed: tuple[int, str] | None = None
        self._pass_on = pass_on
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._changed = asyncio.Event()  # a message was taken, a first one sent, or the session has left
        self._inbox.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(one(scope, self._receive, self._send))
        self.task.add_done_callback(lambda _: self._changed.set())

    async def opened(self) -> bool:
        """Wait for the first message. Returns whether the session is open."""
        while self.hello is None and not self.task.done():
            await self._next_change()
        return self.hello is not None

    async def put(self, message: Message) -> None:
        """The next message of the client, as soon as the one before was taken."""
        while not self._inbox.empty() and not self.task.done():
            await self._next_change()
        self._inbox.put_nowait(message)

    def give_up(self) -> None:
        """The other session could not be opened: this one is kept only if it was here before."""
        hello = self.hello or {}
        is_new = DISCARD if "resumed" not in hello else MOVED if "continued" in hello else None
        self.end(is_new or _BROKEN)

    def end(self, code: int, reason: str | None = None) -> None:
        """The client is gone; what it had sent comes first."""
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _receive(self) -> Message:
        message = await self._inbox.get()
        self._changed.set()
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "websocket.close":
            self.closed = message.get("code", 1000), message.get("reason") or ""
        elif message["type"] != "websocket.accept":
            await self._pass_on(self, message)
        self._changed.set()


class _Connection:
    """One connection of the client, and the two sessions behind it."""

    def __init__(self, client: WebSocket, one: ASGIApp, queries: list[str], first_frames: list[str]) -> None:
        self._client = client
        self._one = one
        self._queries = queries
        self._first_frames = first_frames
        self._channels: list[_Channel] = []
        self._greeted = asyncio.Event()  # the client has the first message
        self._sending = asyncio.Lock()
        self._whole_samples = WholeSamples(_FRAME_BYTES)
        self._slice = TimeSlice()

    async def run(self) -> None:
        """Serve until the client or a session ends the connection."""
        scope = self._client.scope
        state = {**scope["state"], "place": _SharedPlace(scope["state"]["place"])}
        for number, query in enumerate(self._queries):  # one after the other: the second needs no answer if one fails
            own = {**scope, "query_string": query.encode("latin-1"), "state": state}
            channel = _Channel(number, own, self._one, self._pass_on)
            self._channels.append(channel)
            if self._first_frames:
                await channel.put({"type": "websocket.receive", "text": self._first_frames[number]})
            if not await channel.opened():
                for other in self._channels[:-1]:
                    other.give_up()
                await self._close(channel.closed)
                return
        if len({"continued" in (channel.hello or {}) for channel in self._channels}) > 1:
            # One of the two has ended here. Neither is kept, so that the next try continues both.
            for channel in self._channels:
                channel.end(MOVED)
            await self._close((_TRY_AGAIN, ""))
            return
        await self._send_json(self._hello())
        self._greeted.set()
        reader = asyncio.create_task(self._read())
        try:
            await asyncio.wait({reader, *(channel.task for channel in self._channels)}, return_when="FIRST_COMPLETED")
            if reader.done():
                reader.result()
                await asyncio.wait({channel.task for channel in self._channels})
                return
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
        ended = next(channel for channel in self._channels if channel.task.done())
        if ended.closed is None or ended.closed[0] != _SHUTDOWN:  # at a shutdown each sends its final and ends itself
            for channel in self._channels:
                channel.end(_BROKEN)
        await self._close(ended.closed)

    async def cancel(self) -> None:
        """End the tasks that still run."""
        for channel in self._channels:
            channel.task.cancel()
        await asyncio.gather(*(channel.task for channel in self._channels), return_exceptions=True)

    async def _close(self, closed: tuple[int, str] | None) -> None:
        """Close the connection as a channel was, when both are done."""
        await asyncio.wait({channel.task for channel in self._channels}, timeout=_END_S)
        if self._client.application_state in (WebSocketState.CONNECTING, WebSocketState.CONNECTED):
            await self._client.close(*(closed or (_FAILED, "")))

    # -- from the client ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read messages until the client is gone."""
        while True:
            message = await self._client.receive()
            if message["type"] == "websocket.disconnect":
                for channel in self._channels:
                    channel.end(message.get("code", _BROKEN), message.get("reason"))
                return
            if (pcm := message.get("bytes")) is not None:
                await self._divide(pcm)
            else:
                await self._act(message.get("text") or "")

    async def _divide(self, pcm: bytes) -> None:
        parts = [bytearray() for _ in NAMES]
        for piece in pieces(self._whole_samples.push(pcm), PIECE_BYTES):
            samples = array("H", piece)
            for number, part in enumerate(parts):
                part += samples[number::CHANNELS].tobytes()
            await self._slice.next_round()
        for channel, part in zip(self._channels, parts, strict=True):
            skipped = min(channel.skip_bytes, len(part))
            channel.skip_bytes -= skipped
            if len(part) > skipped:
                await channel.put({"type": "websocket.receive", "bytes": bytes(part[skipped:])})

    async def _act(self, text: str) -> None:
        kind = ""
        with suppress(InvalidInput):  # each session says what is wrong, and counts the action
            kind = parse_action(text).action
        if kind == "ping":
            await self._send_json({"status": "pong"})
            return
        for channel in self._channels:
            if not channel.skip_actions:
                await channel.put({"type": "websocket.receive", "text": text})
                continue
            channel.skip_actions -= 1
            if kind in _ANSWERED_BEFORE:
                answer = _ANSWERED_BEFORE[kind]
                channel.answers[answer["status"]].append(answer)

    # -- from the sessions -------------------------------------------------------------------------------------------

    def _hello(self) -> Json:
        hellos = [channel.hello or {} for channel in self._channels]
        hello = {name: value for name, value in hellos[0].items() if name not in _OF_CHANNEL}
        hello |= {"session_id": _BETWEEN.join(each["session_id"] for each in hellos), "channels": CHANNELS}
        if "received_bytes" in hellos[0]:
            common = min(each["received_bytes"] for each in hellos) // 2 * 2  # whole samples
            hello["received_bytes"] = common * CHANNELS
            for channel, each in zip(self._channels, hellos, strict=True):
                channel.skip_bytes = each["received_bytes"] - common
        if "actions" in hellos[0]:
            hello["actions"] = min(each["actions"] for each in hellos)
            for channel, each in zip(self._channels, hellos, strict=True):
                channel.skip_actions = each["actions"] - hello["actions"]
        if any("continued" in each for each in hellos):
            hello["continued"] = True
        if (continuation := self._continuation()) is not None:
            hello["continuation"] = continuation
        return hello

    def _continuation(self) -> Json | None:
        """The newest one of both sessions; None while one of them has said none."""
        first, second = (channel.continuation for channel in self._channels)
        return joined_continuation(first, second) if first is not None and second is not None else None

    async def _pass_on(self, channel: _Channel, message: Message) -> None:
        """A message of one session's, before it closes."""
        if message["type"] != "websocket.send":  # it refuses the handshake
            await self._client.send(message)
            return
        if channel.hello is not None:
            await self._greeted.wait()
        content = json.loads(message["text"])
        status = content.get("status")
        channel.continuation = content.get("continuation", channel.continuation)
        if status == "connected":
            channel.hello = content
        elif status == "continuation":
            if (continuation := self._continuation()) is not None:
                await self._send_json({**content, "continuation": continuation})
        elif status in _JOINED:
            await self._join(channel, status, content)
        else:
            await self._send_json(_of_channel(channel, content))

    async def _join(self, channel: _Channel, status: str, content: Json) -> None:
        """A message that the client gets when both sessions have sent it, such as the answer to an action."""
        other = self._channels[1 - channel.number]
        if not other.answers[status]:
            channel.answers[status].append(content)
            return
        answered = other.answers[status].popleft()
        if status == "settled":
            first, second = (content, answered) if channel.number == 0 else (answered, content)
            # Odd numbers are the first session's, even ones the second's: all of both up to this one are finished.
            utterance = min(2 * first["utterance"], 2 * second["utterance"] + 1)
            content = {**content, "utterance": utterance, "seconds": min(first["seconds"], second["seconds"])}
        elif status == "reconnect":
            within_s = min(content["within_s"], answered["within_s"])
            content = {**content, "continuation": self._continuation(), "within_s": within_s}
        await self._send_json(content)

    async def _send_json(self, content: Json) -> None:
        async with self._sending:
            if self._client.application_state is WebSocketState.CONNECTING:
                await self._client.accept()
            if self._client.application_state is WebSocketState.CONNECTED:
                await self._client.send_json(content)


def _of_channel(channel: _Channel, content: Json) -> Json:
    """The message of one session, as the client gets it."""
    named = {**content, "speaker": channel.name}
    if "utterance" in content:
        named["utterance"] = common_number(content["utterance"], channel.number)
    if "text" in content:
        committed = content["committed"]
        named["speakers"] = [{"speaker": channel.name, "text": committed}] if committed else []
        named["speakers_settled"] = content["is_final"]
    if "words" in content:
        named["words"] = [{**word, "speaker": channel.name} for word in content["words"]]
    return named
