"""A blocking client of `WS /ws/transcribe`: send from one thread, read from another. Plays and records nothing.

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
import re
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus, WebSocketException
from websockets.frames import CloseCode
from websockets.sync.client import ClientConnection, connect

from asr_server.client.connection import LOOPBACK
from asr_server.client.live_input import LiveInput
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.transcript import SpeakerRun, TimeSource, Word
from asr_server.text.scripts import continued

# A proxy may start a server before it accepts the connection. The server loads no model before its first message.
_OPEN_TIMEOUT_S, _HELLO_TIMEOUT_S = 10.0, 30.0
_DROP_TIMEOUT_S = 1.0
# Audio that is kept to be sent again after a cut: more than a minute at 48 kHz.
_BUFFER_BYTES = 8 * 1024 * 1024
_LINES_KEPT = 64  # since the words and speakers of a line may come after it
_ASK_EVERY_S = 5  # of audio, after which the client asks which audio is finished: silence has no final
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 5.0  # between tries to reach a server
_FINAL_CODES = {"session_closed", "audio_lost"}  # errors that a further try cannot mend
_LETTER = re.compile("[A-Z]|A[A-N]")  # of one of 40 speakers; anything else is the name of a stored voice


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
    token: str = ""  # the key, if the server has keys
    words: Literal["", "accurate", "fast"] = ""  # how to find the times of words, "" for no times
    speakers: bool = False  # distinguish speakers


@dataclass(frozen=True, slots=True)
class Line:
    """The text of one utterance so far, which replaces the previous line of the same utterance."""

    utterance: int  # counts the utterances since the client began
    committed: str  # text that only grows
    tentative: str  # text that may still change
    ending: str  # "" while the utterance is open, then `pause`, `cut`, `flush` or `close`
    language: str
    start_s: float  # since the client began
    end_s: float  # since the client began
    lag_ms: int
    words: tuple[Word, ...] = ()  # if word times are wanted, a final that has text comes a second time, with its words
    # if speakers are wanted, the committed text in runs of one speaker; a line comes again when they change. A new
    # session does not know the voices of the previous one: its letters are A2, B2 and so on.
    speakers: tuple[SpeakerRun, ...] = ()
    speakers_settled: bool = False  # the speakers will not change any more

    @property
    def text(self) -> str:
        return self.committed + self.tentative

    @property
    def final(self) -> bool:
        return bool(self.ending)


def line_of(message: dict[str, Any]) -> Line:
    return Line(
        utterance=message["utterance"],
        committed=message["committed"],
        tentative=message["tentative"],
        ending=message.get("ending", "flush") if message["is_final"] else "",
        language=message["language"],
        start_s=message["start"],
        end_s=message["end"],
        lag_ms=message["lag_ms"],
        speakers=runs_of(message),
        speakers_settled=message.get("speakers_settled", False),
    )


def _continued(shown: Line, line: Line) -> Line:
    """Return a line that a new session transcribed again, so that it continues the words committed before."""
    text = continued(shown.committed, line.text)
    committed = text if line.final else shown.committed
    return replace(line, committed=committed, tentative=text[len(committed) :])


def runs_of(message: dict[str, Any]) -> tuple[SpeakerRun, ...]:
    """Return who spoke, from a text message or a later update; empty if speakers are not wanted."""
    return tuple(SpeakerRun(run["speaker"], run["text"]) for run in message.get("speakers", ()))


def word_of(word: dict[str, Any]) -> Word:
    times_ms = round(1000 * word["start"]), round(1000 * word["end"])
    return Word(word["word"], *times_ms, TimeSource(word["source"]), speaker=word.get("speaker"))


def _opened(url: str, options: LiveOptions, **more: str) -> tuple[ClientConnection, dict[str, Any]]:
    """Connect to a new session, or, with `session_id` and `received` in `more`, to an existing one.

    Returns the connection and the server's first message. Raises `LiveError` if the server refuses, and `OSError` or
    `WebSocketException` if no server answers.
    """
    # The key goes into a header: proxies log addresses.
    headers = {"Authorization": f"Bearer {options.token}"} if options.token else None
    try:
        opened = connect(
            f"{url}?{_query(options, more)}",
            additional_headers=headers,
            max_size=None,
            compression=None,
            open_timeout=_OPEN_TIMEOUT_S,
            proxy=None if urlsplit(url).hostname in LOOPBACK else True,
        )
    except InvalidStatus as rejected:
        # The HTTP answer with which the server rejected the socket.
        try:
            error = json.loads(rejected.response.body or b"")["error"]
            refusal = LiveError(str(error["code"]), str(error["message"]))
        except (ValueError, KeyError, TypeError):
            status = rejected.response.status_code
            refusal = LiveError("connection_refused", f"The server answered with HTTP {status}.")
        raise refusal from None
    try:
        hello = json.loads(opened.recv(timeout=_HELLO_TIMEOUT_S))
    except TimeoutError:
        opened.close_socket()  # an orderly close would end the utterance of a session that is resumed
        raise
    if "error" in hello:
        opened.close()
        raise LiveError(hello["code"], hello["error"]["message"])
    return opened, hello


def _query(options: LiveOptions, more: Mapping[str, str]) -> str:
    query = {"sample_rate": str(options.sample_rate_hz), "language": options.language, "words": options.words}
    query |= {"speakers": "true"} if options.speakers else {}
    if options.use_server_vad is not None:
        query["use_server_vad"] = str(options.use_server_vad).lower()
    return urlencode({name: value for name, value in {**query, **more}.items() if value})


class LiveClient:
    """Live transcription that survives the loss of its connection or its server.

    `resume` sends the audio that had not arrived. If the session is lost, it begins a new one with the audio that has
    no final.

    `speakers_lost`: why the server no longer distinguishes speakers, "" while it does. `last_words`: the last final of
    a server that shut down, until a new session transcribes its utterance again.
    """

    def __init__(self, server: str, options: LiveOptions | None = None) -> None:
        self._url = server.rstrip("/").replace("http", "ws", 1) + "/ws/transcribe"
        self._options = options or LiveOptions()
        # Held while anything is sent: one thread replaces the connection on which another one calls `send`, and input
        # sent again must precede the audio of a later `send`. Not held while a connection opens: `send` need not wait.
        self._lock = threading.Lock()
        self._input = LiveInput(_BUFFER_BYTES)  # guarded by the lock
        self._unasked_bytes = 0  # sent since the client last asked which audio is finished
        # Only the reading thread uses these: the accepted changes of the configuration, the number of the last final,
        # and that number when the present session began.
        self._changes: dict[str, Any] = {}
        self._received = self._received_before = 0
        self._sessions = 1
        self._leaving = False  # the server shuts down, and sends nothing more
        self._lines: OrderedDict[int, Line] = OrderedDict()  # the last line of each of the latest utterances
        self._late: deque[Line] = deque()  # lines of the previous session that `lines` has not yielded yet
        self._closed = False
        self.speakers_lost = ""
        self.last_words: Line | None = None
        self._socket, self.hello = _opened(self._url, self._options)
        if self._options.hotwords:
            self.configure(hotwords=list(self._options.hotwords))

    def __enter__(self) -> LiveClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session_id(self) -> str:
        return str(self.hello["session_id"])

    @property
    def has_room(self) -> bool:
        """True if the buffer has room for more audio and everything that a new session would need.

        A caller with a file waits until there is room; a microphone cannot. There is always room if only a flush ends
        an utterance.
        """
        if self.hello.get("endpointing") == "manual":
            return True
        with self._lock:
            return self._input.held_bytes < _BUFFER_BYTES // 2

    def send(self, pcm: bytes) -> None:
        """Send the next audio: 16-bit little-endian at `sample_rate_hz`, mono, cut anywhere.

        Raises `ConnectionClosed`; the audio is kept anyway, and `resume` sends it again.
        """
        with self._lock:
            self._input.add_audio(pcm)
            self._unasked_bytes += len(pcm)
            if self._unasked_bytes >= _ASK_EVERY_S * self._bytes_per_s:
                self._unasked_bytes = 0
                self._input.add_action("settled", json.dumps({"action": "settled"}))
            try:
                self._send_pending()
            finally:  # even while nothing reaches the server
                self._input.trim()

    def flush(self) -> None:
        """End the utterance. The server answers with a line whose `ending` is `flush`."""
        self._act("flush")

    def reset(self) -> None:
        """Discard the open utterance."""
        self._act("reset")

    def configure(self, **changes: Any) -> None:
        """Change `language`, `use_server_vad` or `hotwords`, from the next utterance on."""
        self._act("config", **changes)

    def lines(self, wait_s: float | None = None) -> Iterator[Line]:
        """Yield the lines from the server until it closes the connection or sends no message for `wait_s` seconds.

        Raises `LiveError` for a message that the server refused; the session continues. Raises `ConnectionClosed` if
        the connection broke or the server shut down: `resume` may continue the session.
        """
        while True:
            while self._late:
                yield self._late.popleft()
            try:
                message = json.loads(self._socket.recv(timeout=wait_s))
            except TimeoutError:
                return
            except ConnectionClosedOK:
                # A server that shuts down says so before it closes. websockets drops messages that come with the close
                # frame if it cannot send its own.
                self._leaving = self._leaving or self._socket.close_code == CloseCode.GOING_AWAY
                if self._leaving:
                    raise
                return
            if "error" in message:
                if message["error"].get("param"):  # among all errors of a session, only a refused change has one
                    self._answered("config")
                raise LiveError(message["code"], message["error"]["message"])
            yield from self._on_message(self._of_all(message))

    def _on_message(self, message: dict[str, Any]) -> Iterator[Line]:
        number, status = message.get("utterance", 0), message.get("status")
        if "text" in message:
            line = line_of(message)
            if line.ending == "close":  # it may end inside a word: the next session transcribes the utterance again
                self.last_words = line
                line = replace(line, ending="", committed="", tentative=line.text)
            if (shown := self._lines.get(number)) is not None and not line.committed.startswith(shown.committed):
                line = _continued(shown, line)
            if line.final:
                self._received = number
                self._finished(line.end_s)
                if line.ending == "flush":
                    self._answered("flush")
            yield self._kept(line)
        elif status == "settled":
            self._answered("settled")
            self._finished(message["seconds"])
        elif status == "configured":
            self._changes |= self._answered("config")
        elif status == "reconnect":
            self._leaving = True
        elif status == "buffer_reset":  # the open line was discarded
            self._lines = OrderedDict((number, line) for number, line in self._lines.items() if line.final)
            with self._lock:
                self._input.discarded()
        elif status == "speakers_unavailable":
            self.speakers_lost = message["message"]
        elif number in self._lines and "words" in message:
            yield self._kept(replace(self._lines[number], words=tuple(map(word_of, message["words"]))))
        elif number in self._lines and message.get("type") == "speaker_update":
            settled = message["speakers_settled"]
            yield self._kept(replace(self._lines[number], speakers=runs_of(message), speakers_settled=settled))

    def _of_all(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with numbers, times and speakers counted from the client's first session."""
        if self._sessions == 1:
            return message
        before_s = self._input.begin / self._bytes_per_s

        def moved(part: dict[str, Any]) -> dict[str, Any]:
            found = part | {name: before_s + part[name] for name in ("start", "end", "seconds") if name in part}
            if _LETTER.fullmatch(part.get("speaker") or ""):
                found["speaker"] += str(self._sessions)
            return found

        whole = moved(message)
        if "utterance" in whole:
            whole["utterance"] += self._received_before
        return whole | {name: list(map(moved, whole[name])) for name in ("words", "speakers") if name in whole}

    def _kept(self, line: Line) -> Line:
        self._lines[line.utterance] = line
        if len(self._lines) > _LINES_KEPT:
            self._lines.popitem(last=False)
        return line

    def resume(self) -> None:
        """Connect to the same session again, and resend the audio and actions that had not arrived.

        If the session is lost, a new one gets the audio without a final and the actions without an answer. Raises
        `LiveError`, and `OSError` or `WebSocketException` if no server answers. The caller may try again.
        """
        with suppress(OSError):
            self.cut()  # ends a `lines` that still waits for the old connection
        if not self._leaving:
            known = {"session_id": self.session_id, "received": str(self._received - self._received_before)}
            try:
                self._go_on(*_opened(self._url, self._options, **known))
                return
            except LiveError as error:
                if error.code != "session_not_found":
                    raise
        last = self._lines.get(self._received)
        place = "pause" if last is None or last.ending == "pause" else "speech"
        self._go_on(*_opened(self._url, self._options, reopened=place))

    def resume_within(self, limit_s: float) -> None:
        """Call `resume` with growing pauses until it succeeds, for at most `limit_s` seconds and one more try.

        Raises the last error. An error that another try cannot mend is raised at once.
        """
        give_up_s, delay_s = time.monotonic() + limit_s, _FIRST_DELAY_S
        while True:
            try:
                self.resume()
                return
            except (OSError, LiveError, WebSocketException) as error:
                final = self._closed or (isinstance(error, LiveError) and error.code in _FINAL_CODES)
                if final or time.monotonic() + delay_s > give_up_s:
                    raise
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def close(self) -> None:
        """End the session in order. This client cannot resume it."""
        with self._lock:  # `resume` may be replacing the connection
            self._closed = True
            last = self._socket
        last.close()

    def cut(self) -> None:
        """Break the connection as a network would, without a closing handshake."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _act(self, action: str, **values: Any) -> None:
        with self._lock:
            added = self._input.add_action(action, json.dumps({"action": action, **values}))
            try:
                self._send_pending()
            except ConnectionClosed:
                self._input.take_back(added)
                raise  # so that the caller knows that the action was not sent

    def _send_pending(self) -> None:
        """Send all input not yet sent over this connection. The caller holds the lock."""
        while (frame := self._input.next_frame()) is not None:
            self._socket.send(frame)

    @property
    def _bytes_per_s(self) -> int:
        return 2 * self._options.sample_rate_hz

    def _finished(self, end_s: float) -> None:
        """Note that all audio before this time since the client began need not be sent again."""
        with self._lock:
            self._input.finished(2 * round(end_s * self._options.sample_rate_hz))

    def _answered(self, action: str) -> dict[str, Any]:
        """Drop the oldest sent action of this kind, and return its values."""
        with self._lock:
            text = self._input.answered(action)
        values: dict[str, Any] = json.loads(text or "{}")
        values.pop("action", None)
        return values

    def _go_on(self, fresh: ClientConnection, hello: dict[str, Any]) -> None:
        """Continue over this connection. Raises `LiveError` and changes nothing if that is impossible."""
        with self._lock:
            refusal = None
            if self._closed:
                refusal = LiveError("session_closed", "The client was closed.")
            elif not self._can_go_on(hello):
                refusal = LiveError("audio_lost", "More audio had not arrived than is kept to be sent again.")
            if refusal is not None:
                fresh.close_timeout = _DROP_TIMEOUT_S  # do not wait long for the server
                fresh.close()
                raise refusal
            self._socket, self.hello, self._leaving, self.last_words = fresh, hello, False, None
            if not hello.get("resumed"):
                self._sessions += 1
                self._received_before = self._received
                unsettled = [line for line in self._lines.values() if line.speakers and not line.speakers_settled]
                self._late.extend(self._kept(replace(line, speakers_settled=True)) for line in unsettled if line.final)
            with suppress(ConnectionClosed):  # the input is kept, and `lines` raises the error
                self._send_pending()

    def _can_go_on(self, hello: dict[str, Any]) -> bool:
        """Rewind the input to where the session of this first message needs it. A new session gets the changed
        configuration first. Returns False if part of the input is no longer held."""
        if hello.get("resumed"):
            return self._input.resume(int(hello["received_bytes"]), int(hello["actions"]))
        changed = {"action": "config", **self._changes}
        return self._input.reopen([("config", json.dumps(changed))] if self._changes else [])


__all__ = ["ConnectionClosed", "Line", "LiveClient", "LiveError", "LiveOptions", "WebSocketException"]
