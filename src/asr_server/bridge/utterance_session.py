"""One utterance of a Wyoming client as one live session: audio in, certain words out, one text at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from asr_server.bridge.growing import GrowingText
from asr_server.bridge.pcm import PcmFormat, PcmStream
from asr_server.client.live import ConnectionClosed, LiveClient, LiveError, LiveOptions

_BROKEN = "The connection to the server broke."


class UtteranceError(Exception):
    """The utterance cannot be transcribed; `code` is stable and, where the server refused, the server's own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class UtteranceOptions:
    """How to listen. `language` in any spelling, "" to find out; `hotwords`: names and terms to expect."""

    language: str = ""
    hotwords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UtteranceText:
    """The whole text, "" where nobody spoke; `language` is an ISO code or ""."""

    text: str
    language: str


class UtteranceSession:
    """Opens the session at once, so that the server works while audio comes. Every error is a `UtteranceError`."""

    def __init__(self, server: str, token: str, wish: UtteranceOptions, tell: Callable[[str], None]) -> None:
        """`tell` gets certain words as they come, on a thread of the hearing's own; it may raise `OSError`."""
        self._growing = GrowingText()
        self._pcm = PcmStream()
        self._tell = tell
        self._error: Exception | None = None
        self._server = server
        self._client = self._opened(LiveOptions(language=wish.language, token=token))
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            if wish.hotwords:
                self._client.configure(hotwords=list(wish.hotwords))
        except ConnectionClosed as error:
            raise _named(error, server) from error
        self._reader.start()

    def push(self, pcm: bytes, form: PcmFormat) -> None:
        """The next audio; waits while the server is behind."""
        self._send(self._pcm.push(pcm, form))

    def finish(self) -> UtteranceText:
        """All audio is there: the text. The session has ended afterwards."""
        self._send(self._pcm.flush())
        try:
            self._client.flush()
        except ConnectionClosed as error:
            raise _named(self._error or error, self._server) from error
        self._reader.join()
        if self._error is not None:
            raise _named(self._error, self._server) from self._error
        self.close()
        return UtteranceText(self._growing.text, self._growing.language)

    def close(self) -> None:
        """End the session, also in the middle."""
        self._client.close()

    def _opened(self, options: LiveOptions) -> LiveClient:
        try:
            return LiveClient(self._server, options)
        except (OSError, LiveError, ConnectionClosed, InvalidHandshake, InvalidURI, ValueError) as error:
            raise _named(error, self._server) from error

    def _send(self, pcm: bytes) -> None:
        if self._error is not None:
            raise _named(self._error, self._server) from self._error
        try:
            if pcm:
                self._client.send(pcm)
        except ConnectionClosed as error:
            raise _named(self._error or error, self._server) from error

    def _read(self) -> None:
        try:
            for line in self._client.lines():
                if certain := self._growing.feed(line):
                    self._tell(certain)
                if line.ending == "flush":
                    return
            self._error = UtteranceError("connection_lost", _BROKEN)
        except (OSError, LiveError, ConnectionClosed) as error:
            self._error = error


def _named(error: Exception, server: str) -> UtteranceError:
    """What failed, for the person in front of a client: in words, with a code."""
    if isinstance(error, UtteranceError | LiveError):
        return UtteranceError(error.code, str(error))
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        return UtteranceError(f"http_{status}", f"The server at {server} answered {status} to the live socket.")
    if isinstance(error, ConnectionClosed):
        return UtteranceError("connection_lost", _BROKEN)
    return UtteranceError("server_unreachable", f"No server answers at {server}.")
