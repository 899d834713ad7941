"""The connection of a live session: how it is opened, refused and dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    """How a session begins. None and "" leave the choice to the server. `hotwords`: names and terms to expect. `token`:
    the key, where the server has keys. `words`: "accurate" or "fast" for word times, "" for none. `speakers`: tell them
    apart. `channels`: 2 for samples of two channels in turn, where each channel is a speaker."""

    language: str = ""
    sample_rate_hz: int = SAMPLE_RATE
    use_server_vad: bool | None = None
    hotwords: tuple[str, ...] = ()
    token: str = ""
    words: Literal["", "accurate", "fast"] = ""
    speakers: bool = False
    channels: Literal[1, 2] = 1


@dataclass(frozen=True, slots=True, eq=False)
class SessionConnection:
    """A connection to a session, and the first message of the server."""

    socket: ClientConnection
    hello: dict[str, Any]

    def leave(self) -> None:
        """The session goes on over another connection: the server need not keep it. It is not waited for for long."""
        self.socket.close_timeout = _DROP_TIMEOUT_S
        self.socket.close(_MOVED)


def open_connection(
    url: str, options: LiveOptions, extra: Mapping[str, str], timeout_s: float | None = None
) -> SessionConnection:
    """Connect to a session: a new one, or the one that `extra`, of the query, names. `timeout_s`: for the handshake,
    and again for the first message; None for the usual limits.

    Raises `LiveError` where the server refuses it, `OSError` or `WebSocketException` where none answers.
    """
    query = {"sample_rate": str(options.sample_rate_hz), "language": options.language, "words": options.words}
    query |= {"handover": "true"}
    query |= {"speakers": "true"} if options.speakers else {}
    query |= {"channels": str(options.channels)} if options.channels > 1 else {}
    query |= extra
    if options.use_server_vad is not None:
        query["use_server_vad"] = str(options.use_server_vad).lower()
    query_text = urlencode({name: value for name, value in query.items() if value})
    # In a header: proxies log addresses.
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else None
    try:
        opened = connect(
            f"{url}?{query_text}",
            additional_headers=headers,
            max_size=None,
            compression=None,
            open_timeout=_OPEN_TIMEOUT_S if timeout_s is None else timeout_s,
        )
    except InvalidStatus as rejected:
        raise _rejection(rejected) from None
    try:
        hello = json.loads(opened.recv(timeout=_HELLO_TIMEOUT_S if timeout_s is None else timeout_s))
    except TimeoutError:
        # The server may have opened the session without our knowledge; it would go on from an old state there.
        SessionConnection(opened, {}).leave()
        raise
    if "error" in hello:
        opened.close()
        raise LiveError(hello["code"], hello["error"]["message"])
    return SessionConnection(opened, hello)


def _rejection(rejected: InvalidStatus) -> LiveError:
    """The error in the HTTP answer with which the server rejected the socket."""
    try:
        error = json.loads(rejected.response.body or b"")["error"]
        return LiveError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return LiveError("connection_refused", f"The server answered with HTTP {rejected.response.status_code}.")
