"""A client of `WS /ws/transcribe`, blocking: send from one thread, read from another. Plays and records nothing.

with LiveClient("http://127.0.0.1:8100", LiveOptions(language="en")) as client:
    client.send(pcm)
    client.flush()
    for line in client.lines():
        print(line.committed, line.tentative)
        if line.ending == "flush":
            break
"""

from __future__ import annotations

import json
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.transcript import SpeakerRun, TimeSource, Word
from asr_server.live.replay_buffer import ControlFrame, ReplayBuffer

# What is kept to be sent again after a cut: a minute at 48 kHz and more.
_BUFFER_BYTES = 8 * 1024 * 1024
_LINES_KEPT = 64  # words and speakers of a line may follow it


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


@dataclass(frozen=True, slots=True)
class Line:
    """The text of one utterance so far. It replaces the last line of the same `utterance`.

    `committed` only grows. `ending` is "" while the utterance is open, then `pause`, `cut`, `flush` or `close`. Times
    are seconds since the session began. With word times, a final that has text comes a second time, with its `words`.

    `speaker`: with two channels, whose line it is. `speakers`: where they are told apart, the committed text in runs of
    one speaker; a line comes again when they change, until `speakers_settled`.
    """

    utterance: int
    committed: str
    tentative: str
    ending: str
    language: str
    start_s: float
    end_s: float
    lag_ms: int
    words: tuple[Word, ...] = ()
    speaker: str | None = None
    speakers: tuple[SpeakerRun, ...] = ()
    speakers_settled: bool = False

    @property
    def text(self) -> str:
        """Committed and tentative text."""
        return self.committed + self.tentative

    @property
    def final(self) -> bool:
        """Whether the line is the last one of its utterance."""
        return bool(self.ending)


class LiveClient:
    """One session. It survives its connection: `resume` continues where audio stopped arriving.

    `speakers_lost`: why the server does not tell speakers apart any more, "" while it does.
    """

    def __init__(self, server: str, options: LiveOptions | None = None) -> None:
        self._url = server.rstrip("/").replace("http", "ws", 1) + "/ws/transcribe"
        self._options = options or LiveOptions()
        # Held while anything is sent: `resume` on one thread replaces the connection that `send` uses on another, and
        # what it sends again must come before what `send` adds.
        self._lock = threading.Lock()
        self._buffer: ReplayBuffer[ControlFrame] = ReplayBuffer()
        self._received = [0] * self._options.channels  # the last final of each
        self._lines: OrderedDict[int, Line] = OrderedDict()  # the last one of the latest utterances
        self.speakers_lost = ""
        self.hello: dict[str, Any] = {}
        self._socket = self._connect({})
        if self._options.hotwords:
            self.configure(hotwords=list(self._options.hotwords))

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session_id(self) -> str:
        """The id under which the session can be resumed."""
        return str(self.hello["session_id"])

    def send(self, pcm: bytes) -> None:
        """The next audio: 16-bit little-endian at `sample_rate_hz`, mono or two channels in turn, cut anywhere.

        Raises `ConnectionClosed`; the audio is kept all the same, and `resume` sends it again.
        """
        with self._lock:
            self._buffer.append(pcm)
            try:
                self._send_buffered()
            finally:  # also while nothing arrives
                self._buffer.keep_last(_BUFFER_BYTES)

    def flush(self) -> None:
        """End the utterance; a line whose `ending` is `flush` answers, with two channels one of each."""
        self._act(action="flush")

    def reset(self) -> None:
        """Discard the open utterance."""
        self._act(action="reset")

    def configure(self, **changes: Any) -> None:
        """Change `language`, `use_server_vad` or `hotwords`, from the next utterance on."""
        self._act(action="config", **changes)

    def lines(self, wait_s: float | None = None) -> Iterator[Line]:
        """The lines from the server, until the connection ends in order, or no message came for `wait_s` seconds.

        Raises `LiveError` for a message that the server refused; the session goes on. Raises `ConnectionClosed` where
        the connection broke.
        """
        while True:
            try:
                message = json.loads(self._socket.recv(timeout=wait_s))
            except (TimeoutError, ConnectionClosedOK):
                return
            if "error" in message:
                raise LiveError(message["code"], message["error"]["message"])
            yield from self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> Iterator[Line]:
        number, status = message.get("utterance", 0), message.get("status")
        if "text" in message:
            line = _line(message)
            if line.final:
                self._received[(number - 1) % len(self._received)] = number
            yield self._kept(line)
        elif status == "speakers_unavailable":
            self.speakers_lost = message["message"]
        elif status == "speakers_restarted":
            for line in [line for line in self._lines.values() if line.final and not line.speakers_settled]:
                yield self._kept(replace(line, speakers_settled=True))
        elif number in self._lines and "words" in message:
            yield self._kept(replace(self._lines[number], words=tuple(map(_word, message["words"]))))
        elif number in self._lines and message.get("type") == "speaker_update":
            settled = message["speakers_settled"]
            yield self._kept(replace(self._lines[number], speakers=_runs(message), speakers_settled=settled))

    def _kept(self, line: Line) -> Line:
        self._lines[line.utterance] = line
        if len(self._lines) > _LINES_KEPT:
            self._lines.popitem(last=False)
        return line

    def resume(self) -> None:
        """Connect again to the same session, and send again what had not arrived: audio, and actions between it.

        Whether an action behind all audio that arrived had arrived itself is not known: repeat it if no answer comes.
        Raises `LiveError`, and `OSError` or `WebSocketException` where nobody answers; it may be tried again.
        """
        with suppress(OSError):
            self.cut()  # ends a `lines` that still waits for the old connection
        with self._lock:
            fresh = self._connect({"session_id": self.session_id, "received": ",".join(map(str, self._received))})
            self._buffer.resume(int(self.hello["received_bytes"]))
            if self._buffer.lost_bytes:
                fresh.close()
                raise LiveError("audio_lost", "More audio had not arrived than is kept to be sent again.")
            self._socket = fresh
            self._send_buffered()

    def close(self) -> None:
        """End the session in order."""
        self._socket.close()

    def cut(self) -> None:
        """Break the connection as a network would, without a closing handshake."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _act(self, **action: Any) -> None:
        with self._lock:
            control = ControlFrame(self._buffer.end, json.dumps(action))
            self._buffer.append_control(control)
            try:
                self._send_buffered()
            except ConnectionClosed:
                self._buffer.remove([control])  # the caller knows that it was not sent
                raise

    def _send_buffered(self) -> None:
        """Send what has not been sent over this connection. The caller holds the lock."""
        while (frame := self._buffer.next_frame()) is not None:
            self._socket.send(frame)

    def _connect(self, extra: dict[str, str]) -> ClientConnection:
        options = self._options
        query = {"sample_rate": str(options.sample_rate_hz), "language": options.language, "words": options.words}
        query |= {"speakers": "true"} if options.speakers else {}
        query |= {"channels": str(options.channels)} if options.channels > 1 else {}
        query |= extra
        if options.use_server_vad is not None:
            query["use_server_vad"] = str(options.use_server_vad).lower()
        query_text = urlencode({name: value for name, value in query.items() if value})
        # In a header: proxies log addresses.
        headers = {"Authorization": f"Bearer {options.token}"} if options.token else None
        try:
            connection = connect(
                f"{self._url}?{query_text}", additional_headers=headers, max_size=None, compression=None
            )
        except InvalidStatus as rejected:
            raise _rejection(rejected) from None
        hello = json.loads(connection.recv())
        if "error" in hello:
            connection.close()
            raise LiveError(hello["code"], hello["error"]["message"])
        self.hello = hello
        return connection


def _rejection(rejected: InvalidStatus) -> LiveError:
    """The error in the HTTP answer with which the server rejected the socket."""
    try:
        error = json.loads(rejected.response.body or b"")["error"]
        return LiveError(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return LiveError("connection_refused", f"The server answered with HTTP {rejected.response.status_code}.")


def _word(word: dict[str, Any]) -> Word:
    times_ms = round(1000 * word["start"]), round(1000 * word["end"])
    return Word(word["word"], *times_ms, TimeSource(word["source"]), speaker=word.get("speaker"))


def _runs(message: dict[str, Any]) -> tuple[SpeakerRun, ...]:
    return tuple(SpeakerRun(run["speaker"], run["text"]) for run in message.get("speakers", ()))


def _line(message: dict[str, Any]) -> Line:
    return Line(
        utterance=message["utterance"],
        committed=message["committed"],
        tentative=message["tentative"],
        ending=message.get("ending", "flush") if message["is_final"] else "",
        language=message["language"],
        start_s=message["start"],
        end_s=message["end"],
        lag_ms=message["lag_ms"],
        speaker=message.get("speaker"),
        speakers=_runs(message),
        speakers_settled=message.get("speakers_settled", False),
    )


__all__ = ["ConnectionClosed", "Line", "LiveClient", "LiveError", "LiveOptions", "WebSocketException"]
