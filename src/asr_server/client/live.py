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
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, WebSocketException

from asr_server.client.live_connection import KnownSession, LiveError, LiveOptions, SessionConnection, open_connection
from asr_server.client.live_input import CarriedPlace, LiveInput
from asr_server.core.transcript import SpeakerRun, TimeSource, Word

# Audio that is kept to be sent again after a cut: a minute at 48 kHz and more.
_BUFFER_BYTES = 8 * 1024 * 1024
_LINES_KEPT = 64  # words and speakers of a line may follow it
_COMMITTED_CHARS = 2000  # that a server takes
_GOING_AWAY = 1001
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 5.0  # between tries to reach a server
_TRY_S = 5.0  # for one, while the last server still serves the session
_FINAL_CODES = {"session_not_found", "session_closed", "audio_lost"}  # errors that a further try cannot mend


@dataclass(frozen=True, slots=True)
class Line:
    """The text of one utterance so far, which replaces the line of the same utterance before it."""

    utterance: int  # counts the utterances of the session
    committed: str  # text that only grows
    tentative: str  # text that may still change
    ending: str  # "" while the utterance is open, then `pause`, `cut`, `flush` or `close`
    language: str
    start_s: float  # since the session began
    end_s: float  # since the session began
    lag_ms: int
    words: tuple[Word, ...] = ()  # with word times, a final that has text comes a second time, with these
    # where speakers are wanted, the committed text in runs of one speaker; a line comes again when they change
    speakers: tuple[SpeakerRun, ...] = ()
    speakers_settled: bool = False  # they will not change any more

    @property
    def text(self) -> str:
        """Committed and tentative text."""
        return self.committed + self.tentative

    @property
    def final(self) -> bool:
        """True if the line is the last one of its utterance."""
        return bool(self.ending)


def line_of(message: dict[str, Any]) -> Line:
    """Return a text message as a line."""
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


def runs_of(message: dict[str, Any]) -> tuple[SpeakerRun, ...]:
    """Return who spoke, in a text message or a later update; empty where speakers are not wanted."""
    return tuple(SpeakerRun(run["speaker"], run["text"]) for run in message.get("speakers", ()))


def word_of(word: dict[str, Any]) -> Word:
    """Return a word of a message with word times."""
    times_ms = round(1000 * word["start"]), round(1000 * word["end"])
    return Word(word["word"], *times_ms, TimeSource(word["source"]), speaker=word.get("speaker"))


@dataclass(frozen=True, slots=True)
class _Tries:
    """The time of the next try to reach another server."""

    next_s: float  # monotonic
    delay_s: float = _FIRST_DELAY_S  # from that try to the one after it

    def postponed(self) -> _Tries:
        """Return the tries after one that failed."""
        return _Tries(time.monotonic() + self.delay_s, min(2 * self.delay_s, _LONGEST_DELAY_S))


class LiveClient:
    """A live session. It survives its connection: `resume` continues where audio stopped arriving.

    It also survives its server, where that hands sessions over: when the server asks for it, `lines` goes on at another
    one, and `resume` reaches any. `speakers_lost`: why the server does not distinguish speakers any more, "" while it
    does.
    """

    def __init__(self, server: str, options: LiveOptions | None = None) -> None:
        self._url = server.rstrip("/").replace("http", "ws", 1) + "/ws/transcribe"
        self._options = options or LiveOptions()
        # Held while anything is sent: one thread replaces the connection that `send` uses on another, and what it sends
        # again must come before what `send` adds. Not held while a connection is opened, so that `send` need not wait.
        self._lock = threading.Lock()
        self._input = LiveInput(_BUFFER_BYTES)  # with the lock alone
        self._received = 0  # the last final
        self._lines: OrderedDict[int, Line] = OrderedDict()  # the last one of the latest utterances
        self._late: deque[dict[str, Any]] = deque()  # of the connection before, not read yet
        # Both are replaced, never changed in place, by the thread that reads: others read them without the lock.
        # `_move` is there while the server has asked the client to go on elsewhere.
        self._move: _Tries | None = None
        self._continuation: CarriedPlace | None = None
        self._closed = False
        self.speakers_lost = ""
        first = open_connection(self._url, self._options)
        self._socket, self.hello = first.socket, first.hello
        self._continuation = CarriedPlace.of(first.hello)
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
        """Return the id under which the session can be resumed."""
        return str(self.hello["session_id"])

    @property
    def has_room(self) -> bool:
        """True if more audio can be kept with all that another server would need, should this one go.

        A caller that can wait sends no more while there is none; a microphone cannot. There is always room where
        sessions are not handed over, and where a flush alone ends an utterance.
        """
        if self._continuation is None or self.hello.get("endpointing") == "manual":
            return True
        with self._lock:
            return self._input.held_bytes < _BUFFER_BYTES // 2

    def send(self, pcm: bytes) -> None:
        """Send the next audio: 16-bit little-endian at `sample_rate_hz`, mono, cut anywhere.

        Raises `ConnectionClosed`; the audio is kept all the same, and `resume` sends it again.
        """
        with self._lock:
            self._input.add_audio(pcm)
            try:
                self._send_pending()
            except ConnectionClosed:
                # While `lines` looks for another server, it gives the session a connection, or raises this.
                if self._move is None:
                    raise
            finally:  # also while nothing arrives
                self._input.drop(self._continuation)

    def flush(self) -> None:
        """End the utterance; a line whose `ending` is `flush` answers."""
        self._act(action="flush")

    def reset(self) -> None:
        """Discard the open utterance."""
        self._act(action="reset")

    def configure(self, **changes: Any) -> None:
        """Change `language`, `use_server_vad` or `hotwords`, from the next utterance on."""
        self._act(action="config", **changes)

    def lines(self, wait_s: float | None = None) -> Iterator[Line]:
        """Yield the lines from the server, until the connection ends in order, or no message came for `wait_s` seconds.

        Where a server that is shutting down hands the session over, the lines of the next one follow; while it is
        looked for, `wait_s` may be exceeded by ten seconds. Raises
        `LiveError` for a message that the server refused; the session goes on. Raises `ConnectionClosed` where the
        connection broke, or the server went before another was reached: `resume` may go on.
        """
        while True:
            try:
                message = self._next_message(wait_s)
            except TimeoutError:
                return
            except ConnectionClosedOK as closed:
                if self._continuation is not None and closed.rcvd is not None and closed.rcvd.code == _GOING_AWAY:
                    raise
                return
            if "error" in message:
                raise LiveError(message["code"], message["error"]["message"])
            yield from self._on_message(message)

    def _on_message(self, message: dict[str, Any]) -> Iterator[Line]:
        number, status = message.get("utterance", 0), message.get("status")
        self._continuation = CarriedPlace.of(message) or self._continuation
        if "text" in message:
            line = line_of(message)
            if line.final:
                self._received = number
            yield self._kept(line)
        elif status == "reconnect":
            self._move = _Tries(time.monotonic())
        elif status == "buffer_reset":  # an open line will not be continued
            self._lines = OrderedDict((number, line) for number, line in self._lines.items() if line.final)
        elif status == "speakers_unavailable":
            self.speakers_lost = message["message"]
        elif status == "speakers_restarted":
            for line in [line for line in self._lines.values() if line.final and not line.speakers_settled]:
                yield self._kept(replace(line, speakers_settled=True))
        elif number in self._lines and "words" in message:
            yield self._kept(replace(self._lines[number], words=tuple(map(word_of, message["words"]))))
        elif number in self._lines and message.get("type") == "speaker_update":
            settled = message["speakers_settled"]
            yield self._kept(replace(self._lines[number], speakers=runs_of(message), speakers_settled=settled))

    def _kept(self, line: Line) -> Line:
        self._lines[line.utterance] = line
        if len(self._lines) > _LINES_KEPT:
            self._lines.popitem(last=False)
        return line

    def resume(self) -> None:
        """Connect again to the same session, and send again what had not arrived: audio, and actions between it.

        A server that does not have the session goes on with it, where servers hand sessions over. Whether an action
        behind all audio that arrived had arrived itself may not be known: repeat it if no answer comes. Raises
        `LiveError`, and `OSError` or `WebSocketException` where nobody answers; it may be tried again.
        """
        with suppress(OSError):
            self.cut()  # ends a `lines` that still waits for the old connection
        fresh = open_connection(self._url, self._options, self._known_session())
        with self._lock:
            self._go_on(fresh)

    def resume_within(self, limit_s: float) -> None:
        """`resume`, tried again with growing pauses until it succeeds, for at most `limit_s` seconds and the last try.

        Raises the last error, and at once one that a further try cannot mend.
        """
        give_up_s, tries = time.monotonic() + limit_s, _Tries(time.monotonic())
        while True:
            try:
                self.resume()
                return
            except (OSError, LiveError, WebSocketException) as error:
                final = self._closed or (isinstance(error, LiveError) and error.code in _FINAL_CODES)
                tries = tries.postponed()
                if final or tries.next_s > give_up_s:
                    raise
            time.sleep(max(0.0, tries.next_s - time.monotonic()))

    def close(self) -> None:
        """End the session in order. This client cannot resume it."""
        with self._lock:  # `lines` may be about to go on over another connection
            self._closed = True
            last = self._socket
        last.close()

    def cut(self) -> None:
        """Break the connection as a network would, without a closing handshake."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)

    def _act(self, **action: Any) -> None:
        text = json.dumps(action)
        with self._lock:
            added = self._input.add_action(text)
            try:
                self._send_pending()
            except ConnectionClosed:
                self._input.take_back(added)
                if self._move is None:
                    raise  # the caller knows that it was not sent
                self._input.add_action(text)  # the next connection gets it

    def _send_pending(self) -> None:
        """Send what has not been sent over this connection. The caller holds the lock."""
        while (frame := self._input.next_frame()) is not None:
            self._socket.send(frame)

    # -- another connection ------------------------------------------------------------------------------------------

    def _next_message(self, wait_s: float | None) -> dict[str, Any]:
        """Return the next message of the present connection, which may become another one meanwhile.

        Raises `TimeoutError` after `wait_s` seconds without one, and `ConnectionClosed`.
        """
        give_up_s = None if wait_s is None else time.monotonic() + wait_s
        while True:
            if self._late:
                return self._late.popleft()
            if (move := self._move) is not None and move.next_s <= time.monotonic():
                self._move = self._moved_on(move)
                continue
            limits = [limit for limit in (give_up_s, move.next_s if move else None) if limit is not None]
            try:
                raw = self._socket.recv(timeout=max(0.0, min(limits) - time.monotonic()) if limits else None)
            except TimeoutError:
                if give_up_s is not None and give_up_s <= time.monotonic():
                    raise
            except ConnectionClosed:
                self._move = None
                raise
            else:
                message: dict[str, Any] = json.loads(raw)
                return message

    def _known_session(self) -> KnownSession:
        """Return what a server needs to know of the session, whether it has it or not."""
        known = KnownSession(self.session_id, str(self._received))
        if self._continuation is None:
            return known
        frame = {"action": "continue", "state": self._continuation.state, **self._shown()}
        return replace(known, first_frame=json.dumps(frame))

    def _shown(self) -> dict[str, Any]:
        """Return the text of the open utterance that the caller has; empty if there is none or it is too long."""
        opened = [line for line in self._lines.values() if not line.final and line.utterance > self._received]
        if not opened or len((line := opened[-1]).committed) > _COMMITTED_CHARS:
            return {}
        runs = [{"speaker": run.speaker, "text": run.text} for run in line.speakers]
        return {"utterance": line.utterance, "committed": line.committed, "end": line.end_s, "speakers": runs}

    def _moved_on(self, move: _Tries) -> _Tries | None:
        """Try to go on at another server. Returns when to try again; None where the session has moved.

        Messages of the last server wait unread meanwhile, so that what the next one has been told stays true.
        """
        if (continuation := self._continuation) is None:
            return None
        with self._lock:
            if not self._input.holds(continuation.received_bytes, continuation.actions):
                return move.postponed()  # the last server can still end the utterance, and the next need not hear it
        last = SessionConnection(self._socket, self.hello)
        try:
            fresh = open_connection(self._url, self._options, self._known_session(), _TRY_S)
            with self._lock:
                self._go_on(fresh)
        except (OSError, LiveError, WebSocketException):
            return move.postponed()
        self._late.extend(self._unread(last))
        last.leave()
        return None

    def _unread(self, last: SessionConnection) -> Iterator[dict[str, Any]]:
        """Yield what the last server has still said of the finals that are here. All else the next one says again."""
        with suppress(TimeoutError, ConnectionClosed):
            while True:
                message = json.loads(last.socket.recv(timeout=0))
                number = message.get("utterance", 0)
                if "text" not in message and 0 < number <= self._received:
                    yield message

    def _go_on(self, fresh: SessionConnection) -> None:
        """Continue over this connection. The caller holds the lock. Raises `LiveError`, and nothing has changed."""
        received_bytes, actions = int(fresh.hello["received_bytes"]), fresh.hello.get("actions")
        refusal = None
        if self._closed:
            refusal = LiveError("session_closed", "The session was closed meanwhile.")
        elif not self._input.holds(received_bytes, actions):
            refusal = LiveError("audio_lost", "More audio had not arrived than is kept to be sent again.")
        if refusal is not None:
            fresh.leave()
            raise refusal
        self._input.go_on(received_bytes, actions)
        self._socket, self.hello, self._move = fresh.socket, fresh.hello, None
        self._continuation = CarriedPlace.of(fresh.hello) or self._continuation
        with suppress(ConnectionClosed):  # it is kept, and `lines` raises the error
            self._send_pending()


__all__ = ["ConnectionClosed", "Line", "LiveClient", "LiveError", "LiveOptions", "WebSocketException"]
