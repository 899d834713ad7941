"""The connection of a live session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from asr_server.core.audio import SAMPLE_RATE

# A proxy may start a server before it accepts the connection, and no model is loaded before its first message.
_OPEN_TIMEOUT_S, _HELLO_TIMEOUT_S = 10.0, 30.0
_DROP_TIMEOUT_S = 1.0


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
        """End the session. The server is not waited for for long."""
        self.socket.close_timeout = _DROP_TIMEOUT_S
        self.socket.close()


def open_connection(url: str, options: LiveOptions, **more: str) -> SessionConnection:
    """Connect to a new session, or with `session_id` and `received` in `more` to a known one.

    Raises `LiveError` where the server refuses it, `OSError` or `WebSocketException` where none answers.
    """
    # In a header: proxies log addresses.
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else None
    try:
        opened = connect(
            f"{url}?{_query(options, more)}",
            additional_headers=headers,
            max_size=None,
            compression=None,
            open_timeout=_OPEN_TIMEOUT_S,
        )
    except InvalidStatus as rejected:
        raise _rejection(rejected) from None
    try:
        hello = json.loads(opened.recv(timeout=_HELLO_TIMEOUT_S))
    except TimeoutError:
        opened.close_socket()  # a close in order would end the utterance of a session that is resumed
        raise
    if "error" in hello:
        opened.close()
        raise LiveError(hello["code"], hello["error"]["message"])
    return SessionConnection(opened, hello)


def _query(options: LiveOptions, more: Mapping[str, str]) -> str:
    query = {"sample_rate": str(options.sample_rate_hz), "language": options.language, "words": options.words}
    query |= {"speakers": "true"} if options.speakers else {}
    if options.use_server_vad is not None:
        query["use_server_vad"] = str(options.use_server_vad).lower()
    return urlencode({name: value for name, value in {**query, **more}.items() if value})


def _rejection(rejected: InvalidStatus) -> LiveError:
    """Return the error in the HTTP answer with which the server rejected the socket."""
    try:
        error = json.loads(rejected.response.body or b"")["error"]
        return LiveError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return LiveError("connection_refused", f"The server answered with HTTP {rejected.response.status_code}.")
