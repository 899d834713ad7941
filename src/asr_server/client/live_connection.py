"""The connection of a live session."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from asr_server.core.audio import SAMPLE_RATE

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
