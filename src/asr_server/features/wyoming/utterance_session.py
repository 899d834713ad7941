"""An utterance of a Wyoming client as a live session: audio in, certain words out, the whole text at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from asr_server.client.live import ConnectionClosed, Line, LiveClient, LiveError, LiveOptions, WebSocketException
from asr_server.features.wyoming.pcm import PcmFormat, PcmStream
from asr_server.text import languages
from asr_server.text.scripts import joint

_BROKEN = "The connection to the server broke."
# Somebody waits for the answer to a spoken command.
_RESUME_WITHIN_S = 5.0


class GrowingText:
    """Joins the lines of a live session into one text that only grows. All returned pieces joined are `text`."""

    def __init__(self) -> None:
        self.text = ""  # "" for silence
        self.language = ""  # ISO code or ""
        self._finished = ""
        self._utterance = 0

    def feed(self, line: Line) -> str:
        """Return the words that this line has made certain, with a space before them if needed, or ""."""
        if line.utterance != self._utterance:
            self._utterance, self._finished = line.utterance, self.text
        certain = (line.text if line.final else line.committed).strip()
        if not certain:
            return ""
        # A Wyoming transcript has one language: the language of the first words.
        self.language = self.language or languages.code(line.language)
        before, self.text = self.text, f"{self._finished}{joint(self._finished, certain)}{certain}"
        return self.text[len(before) :]


class UtteranceSession:
    """Opens the session at once, so that the server works while audio arrives. All errors are `LiveError`.

    The caller's thread sends; a thread of this class reads the lines, and resumes the session if its connection breaks.
    The next call raises its error.
    """

    def __init__(self, server: str, options: LiveOptions, on_words: Callable[[str], None]) -> None:
        """`on_words` is called with words that have become certain, on the reading thread. It may raise `OSError`."""
        self._growing = GrowingText()
        self._pcm = PcmStream()
        self._on_words = on_words
        self._error: Exception | None = None
        self._all_sent = threading.Event()
        self._server = server
        try:
            self._client = LiveClient(server, options)
        except (OSError, LiveError, WebSocketException, ValueError) as error:
            raise _utterance_error(error, server) from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def push(self, pcm: bytes, form: PcmFormat) -> None:
        """Send the next audio. Blocks while the server does not read."""
        self._send(self._pcm.push(pcm, form))

    def finish(self) -> GrowingText:
        """End the session and return the text of all audio."""
        self._send(self._pcm.flush())
        self._all_sent.set()
        with suppress(ConnectionClosed):  # the reading thread flushes after it has resumed
            self._client.flush()
        self._reader.join()
        if self._error is not None:
            raise _utterance_error(self._error, self._server) from self._error
        self.close()
        return self._growing

    def close(self) -> None:
        self._client.close()

    def _send(self, pcm: bytes) -> None:
        if self._error is not None:
            raise _utterance_error(self._error, self._server) from self._error
        if pcm:
            with suppress(ConnectionClosed):  # the client keeps it, and the reading thread gets the same error
                self._client.send(pcm)

    def _read(self) -> None:
        while True:
            try:
                self._read_lines()
                return
            except ConnectionClosed as cut:
                try:
                    self._client.resume_within(_RESUME_WITHIN_S)
                except (OSError, LiveError, WebSocketException):
                    self._error = cut
                    return
                if self._all_sent.is_set():  # the flush may not have arrived; a second one does no harm
                    with suppress(ConnectionClosed):
                        self._client.flush()
            except (OSError, LiveError) as error:
                self._error = error
                return

    def _read_lines(self) -> None:
        for line in self._client.lines():
            if certain := self._growing.feed(line):
                self._on_words(certain)
            if line.ending == "flush":
                return
        raise LiveError("connection_lost", _BROKEN)


def _utterance_error(error: Exception, server: str) -> LiveError:
    """Return the error as a code and a message for users."""
    if isinstance(error, LiveError):
        return LiveError(error.code, str(error))
    if isinstance(error, ConnectionClosed):
        return LiveError("connection_lost", _BROKEN)
    return LiveError("server_unreachable", f"No server answers at {server}.")
