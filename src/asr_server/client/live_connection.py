"""The connection of a live session, and what was sent over it that a server may still need.

The session can go on at two places: where its server was when the connection broke, and, on any server, at its newest
continuation. No server needs again what lies before the continuation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Self
from urllib.parse import urlencode

from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.machine.replay_buffer import ControlFrame, ReplayBuffer

# A gateway may start a worker before it accepts the connection, and loads no model before its first message.
_OPEN_TIMEOUT_S, _HELLO_TIMEOUT_S = 10.0, 30.0
_DROP_TIMEOUT_S = 1.0
_MOVED = 4010


class LiveError(Exception):
    """The server refused the session or a message. `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """The options with which a session begins. None and "" leave the choice to the server."""

    language: str = ""
    sample_rate_hz: int = SAMPLE_RATE
    use_server_vad: bool | None = None
    hotwords: tuple[str, ...] = ()  # names and terms to expect
    token: str = ""  # the key, where the server has keys
    words: Literal["", "accurate", "fast"] = ""  # for word times, "" for none
    speakers: bool = False  # distinguish speakers
    channels: Literal[1, 2] = 1  # 2 for samples of two channels in turn, where each channel is a speaker


@dataclass(frozen=True, slots=True, eq=False)
class SessionConnection:
    """A connection to a session, and the first message of the server."""

    socket: ClientConnection
    hello: dict[str, Any]  # the first message

    def leave(self) -> None:
        """The session goes on over another connection: the server need not keep it. It is not waited for for long."""
        self.socket.close_timeout = _DROP_TIMEOUT_S
        self.socket.close(_MOVED)


@dataclass(frozen=True, slots=True)
class KnownSession:
    """A session that is to go on."""

    session_id: str  # its id
    received: str  # the last finals that are here, as the server takes them in the address
    # what any server needs to go on with it, sent before all else; "" where only the server that has the session can
    first_frame: str = ""


def open_connection(
    url: str, options: LiveOptions, known: KnownSession | None = None, timeout_s: float | None = None
) -> SessionConnection:
    """Connect to a new session, or to a known one. `timeout_s`: for the handshake, and again for the first message;
    None for the usual limits.

    Raises `LiveError` where the server refuses it, `OSError` or `WebSocketException` where none answers.
    """
    # In a header: proxies log addresses.
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else None
    try:
        opened = connect(
            f"{url}?{_query(options, known)}",
            additional_headers=headers,
            max_size=None,
            compression=None,
            open_timeout=_OPEN_TIMEOUT_S if timeout_s is None else timeout_s,
        )
    except InvalidStatus as rejected:
        raise _rejection(rejected) from None
    try:
        if known is not None and known.first_frame:
            opened.send(known.first_frame)
        hello = json.loads(opened.recv(timeout=_HELLO_TIMEOUT_S if timeout_s is None else timeout_s))
    except TimeoutError:
        SessionConnection(opened, {}).leave()
        raise
    if "error" in hello:
        opened.close()
        raise LiveError(hello["code"], hello["error"]["message"])
    return SessionConnection(opened, hello)


def _query(options: LiveOptions, known: KnownSession | None) -> str:
    query = {"sample_rate": str(options.sample_rate_hz), "language": options.language, "words": options.words}
    query |= {"speakers": "true"} if options.speakers else {}
    query |= {"channels": str(options.channels)} if options.channels > 1 else {}
    # A server waits for the first frame of a client that says so.
    query |= {"handover": "true"} if known is None or known.first_frame else {}
    query |= {"session_id": known.session_id, "received": known.received} if known is not None else {}
    if options.use_server_vad is not None:
        query["use_server_vad"] = str(options.use_server_vad).lower()
    return urlencode({name: value for name, value in query.items() if value})


def _rejection(rejected: InvalidStatus) -> LiveError:
    """Return the error in the HTTP answer with which the server rejected the socket."""
    try:
        error = json.loads(rejected.response.body or b"")["error"]
        return LiveError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return LiveError("connection_refused", f"The server answered with HTTP {rejected.response.status_code}.")


@dataclass(frozen=True, slots=True)
class ReceivedContinuation:
    """A place from which any server can go on with a session."""

    state: str  # opaque
    received_bytes: int  # the server needs the audio of the session from this byte on,
    actions: int  # and the actions after this many

    @classmethod
    def of(cls, message: dict[str, Any]) -> Self | None:
        """Return the continuation in a message of the server; None where it has none."""
        stated = message.get("continuation")
        return cls(stated["state"], int(stated["received_bytes"]), int(stated["actions"])) if stated else None


@dataclass(slots=True, eq=False)
class SentAction(ControlFrame):
    """An action in its place."""

    number: int  # from 1, over all connections


class LiveInput:
    """The input of one session; at most `limit_bytes` of it are held, the newest. Bytes are counted as the server does:
    a position is also the server's count, since a session that has lost bytes does not go on."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._buffer: ReplayBuffer[SentAction] = ReplayBuffer()
        self._actions = 0

    @property
    def held_bytes(self) -> int:
        """Return an upper bound of what is held."""
        return self._buffer.held_bytes

    def add_audio(self, pcm: bytes) -> None:
        """Add the next audio, cut anywhere."""
        self._buffer.append(pcm)

    def add_action(self, text: str) -> SentAction:
        """Add an action after all audio so far."""
        self._actions += 1
        action = SentAction(self._buffer.end, text, self._actions)
        self._buffer.append_control(action)
        return action

    def take_back(self, action: SentAction) -> None:
        """The last action was not sent, and will not be."""
        self._buffer.remove([action])
        self._actions -= 1

    def next_frame(self) -> bytes | str | None:
        """Return the next frame for the present connection, which counts as sent from now on; None when all were
        sent."""
        return self._buffer.next_frame()

    def drop(self, continuation: ReceivedContinuation | None) -> None:
        """Drop what lies before the newest continuation, and the oldest of the rest beyond the limit."""
        if continuation is not None:
            self._buffer.forget(continuation.received_bytes)
            self._buffer.remove([action for action in self._buffer.controls if action.number <= continuation.actions])
        self._buffer.keep_last(self._limit_bytes)

    def holds(self, received_bytes: int, actions: int | None) -> bool:
        """True if all audio after that many bytes is held, and all actions after the first `actions`, if that is known.

        Without a number of actions, those after the bytes held are held too: the oldest are dropped first.
        """
        missing = 0 if actions is None else self._actions - actions - len(self._after(actions))
        return self._buffer.start <= received_bytes and missing <= 0

    def go_on(self, received_bytes: int, actions: int | None) -> None:
        """Note that a new connection begins after that many bytes and actions, which must be held. Without a number of
        actions, those that were sent before the last of the bytes have arrived."""
        held = None if actions is None else len(self._buffer.controls) - len(self._after(actions))
        self._buffer.resume(received_bytes, held)

    def _after(self, actions: int) -> list[SentAction]:
        return [action for action in self._buffer.controls if action.number > actions]
