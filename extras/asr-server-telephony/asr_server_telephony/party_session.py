"""The live session of one party of a call: audio in, messages out, even while servers come and go."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from loguru import logger

from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions, WebSocketException
from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.wyoming.pcm import PcmFormat, PcmStream
from asr_server.live.machine.framing import INPUT_RATES_HZ
from asr_server.text import languages

Tell = Callable[[dict[str, Any]], None]

# The most audio that waits for a session. During one, the live client holds what has not arrived, up to its own limit.
_WAITING_S = 120
# Longer than the default of WS_RESUME_S: a restarted server gets the audio without a final in a new session.
_RESUME_WITHIN_S = 60.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 5.0  # between tries to begin a session
_SMALLEST_LOSS_S = 0.02  # a packet: the times of words and of samples are rounded
# Errors of a server that is away, refuses the session, or is another program.
_UNAVAILABLE = (OSError, LiveError, WebSocketException, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """The server that transcribes, and what it should do."""

    server: str
    options: LiveOptions
    partials: bool = False  # also report text that may still change


class PartySession:
    """Never blocks its caller: a telephone system ends the call if its connection is not read.

    One thread opens sessions and reads their lines, another sends the audio, which waits while there is no session.
    Both threads call `tell` with messages, without the fields that all messages of the call have.
    """

    def __init__(self, target: SessionTarget, party: str, rate_hz: int, tell: Tell) -> None:
        self.rate_hz = rate_hz
        self._target, self._party, self._tell = target, party, tell
        self._resampler = None if rate_hz in INPUT_RATES_HZ else PcmStream()  # the server refuses other rates
        self._sent_hz = SAMPLE_RATE if self._resampler else rate_hz
        # The condition, and all state that the telephone's thread and the two threads of this class share.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._begun_bytes = 0  # begun: taken from the queue, or dropped
        self._dropped_bytes = 0  # not reported yet
        self._finished = self._all_sent = self._abandoned = False
        self._client: LiveClient | None = None
        self._offset_s = self._told_s = 0.0  # in the call: where the session began, and up to where words were reported
        # Only the reading thread uses these: the utterances of earlier sessions and of this one, and the next pause.
        self._base = self._last = 0
        self._delay_s = _FIRST_DELAY_S
        self._reader = threading.Thread(target=self._run, daemon=True)
        self._reader.start()

    def push(self, pcm: bytes) -> None:
        """Add the next audio. Beyond the limit, the oldest audio that waits is dropped and reported as lost."""
        self._add(self._resampler.push(pcm, PcmFormat(self.rate_hz, 2, 1)) if self._resampler else pcm)

    def finish(self) -> None:
        """Note that no more audio comes."""
        self._add(self._resampler.flush() if self._resampler else b"", finished=True)

    def wait(self, limit_s: float) -> None:
        """Return once all words are reported, or once the words missing after `limit_s` are reported as lost."""
        self._reader.join(limit_s)
        with self._changed:
            self._abandoned = True
            client = self._client
            self._changed.notify_all()
        if client is not None:
            _break_off(client)
        self._reader.join(_LONGEST_DELAY_S)
        if self._reader.is_alive():  # a server that neither answers nor closes
            self._tell_rest_as_lost()

    def _add(self, pcm: bytes, *, finished: bool = False) -> None:
        with self._changed:
            self._finished = finished
            self._waiting.append(pcm)
            self._waiting_bytes += len(pcm)
            while self._waiting_bytes > _WAITING_S * 2 * self._sent_hz:
                size = len(self._waiting.popleft())
                self._waiting_bytes -= size
                self._dropped_bytes += size
                self._begun_bytes += size
            self._changed.notify_all()

    # -- the reading thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._has_audio():
            client = self._opened()
            if client is not None and self._served(client):
                return
            with self._changed:
                self._changed.wait_for(lambda: self._abandoned, self._delay_s)
            self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)
        self._tell_rest_as_lost()

    def _has_audio(self) -> bool:
        with self._changed:
            return not self._abandoned and (self._waiting_bytes > 0 or not self._finished)

    def _opened(self) -> LiveClient | None:
        """Open a session that begins with the waiting audio. Returns None if the server does not give one."""
        options = replace(self._target.options, sample_rate_hz=self._sent_hz)
        try:
            client = LiveClient(self._target.server, options)
        except _UNAVAILABLE as error:
            logger.warning("no live session", code=_code(error), party=self._party)
            return None
        with self._changed:
            self._client, self._dropped_bytes = client, 0
            begin_s = self._offset_s = self._seconds(self._begun_bytes)
        self._lost(self._told_s, begin_s)
        self._base, self._last = self._base + self._last, 0
        return client

    def _served(self, client: LiveClient) -> bool:
        """Run the session. Returns True if it has transcribed all audio, False if the session is lost."""
        sender = threading.Thread(target=self._send, args=(client,), daemon=True)
        sender.start()
        done = self._read(client)
        with self._changed:
            self._client = None
            self._changed.notify_all()
        if not done:
            _break_off(client)
        client.close()
        sender.join()
        return done

    def _read(self, client: LiveClient) -> bool:
        while True:
            try:
                for line in client.lines():
                    self._on_line(line)
                    if line.ending == "flush":  # only the end of the audio is flushed
                        return True
                return False
            except LiveError as error:  # about one message; the session continues
                logger.warning("the server refused a message", code=error.code, party=self._party)
            except ConnectionClosed:
                if not self._resumed(client):
                    return False

    def _resumed(self, client: LiveClient) -> bool:
        logger.warning("connection lost", code="connection_lost", party=self._party)
        try:
            client.resume_within(0.0 if self._abandoned else _RESUME_WITHIN_S)
        except _UNAVAILABLE as error:
            logger.warning("session lost", code=_code(error), party=self._party)
            return False
        if self._all_sent:  # the flush may not have arrived; a second one does no harm
            with suppress(ConnectionClosed):
                client.flush()
        return True

    def _on_line(self, line: Line) -> None:
        self._delay_s = _FIRST_DELAY_S
        if line.final:
            self._told_s = max(self._told_s, self._offset_s + line.end_s)
        self._last = max(self._last, line.utterance)
        if line.text and (line.final or self._target.partials):
            times = {"start": round(self._offset_s + line.start_s, 3), "end": round(self._offset_s + line.end_s, 3)}
            said = {"utterance": self._base + line.utterance, "text": line.text.strip(), "final": line.final}
            self._tell(
                {"type": "text", "party": self._party, **said, "language": languages.code(line.language), **times}
            )

    def _lost(self, start_s: float, end_s: float) -> None:
        """Report that the words between these times of the call will not come."""
        if end_s - start_s < _SMALLEST_LOSS_S:
            return
        logger.error("audio lost", code="audio_lost", party=self._party, seconds=round(end_s - start_s, 3))
        times = {"start": round(start_s, 3), "end": round(end_s, 3)}
        self._tell({"type": "audio_lost", "party": self._party, **times})
        self._told_s = max(self._told_s, end_s)

    def _tell_rest_as_lost(self) -> None:
        with self._changed:
            end_s = self._seconds(self._begun_bytes + self._waiting_bytes)
        self._lost(self._told_s, end_s)

    # -- the sending thread ------------------------------------------------------------------------------------------

    def _send(self, client: LiveClient) -> None:
        """Send the waiting audio, until all of it has been sent or the session has ended."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting_bytes or self._finished or self._client is not client)
                if self._client is not client:
                    return
                pcm, dropped_s = b"".join(self._waiting), self._seconds(self._dropped_bytes)
                self._waiting.clear()
                position_s = self._seconds(self._begun_bytes)
                self._begun_bytes += len(pcm)
                self._waiting_bytes = self._dropped_bytes = 0
            if dropped_s:  # the server took audio more slowly than it came
                self._lost(position_s - dropped_s, position_s)
                self._offset_s += dropped_s
            if not pcm:
                break
            with suppress(ConnectionClosed):  # the client keeps it, and the reading thread gets the same error
                client.send(pcm)
        self._all_sent = True
        with suppress(ConnectionClosed):  # the reading thread flushes after it has resumed
            client.flush()

    def _seconds(self, size_bytes: int) -> float:
        return size_bytes / 2 / self._sent_hz


def _break_off(client: LiveClient) -> None:
    # This also ends a send to a server that does not read. `close` would wait for that send.
    with suppress(OSError):
        client.cut()


def _code(error: Exception) -> str:
    if isinstance(error, LiveError):
        return error.code
    return "connection_lost" if isinstance(error, ConnectionClosed) else "server_unreachable"
