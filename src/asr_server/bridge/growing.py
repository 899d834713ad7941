"""The lines of a live session as one text that only grows. Not the session."""

from __future__ import annotations

from asr_server.client.live import Line
from asr_server.text import languages
from asr_server.text.joining import joint


class GrowingText:
    """Feed it every line; it tells what became certain. All that it told, joined, is the text at the end."""

    def __init__(self) -> None:
        self.text = ""
        self.language = ""
        self._done = ""
        self._utterance = 0

    def feed(self, line: Line) -> str:
        """The new certain words, with the space before them where there is one; "" for none."""
        if line.utterance != self._utterance:
            self._utterance, self._done = line.utterance, self.text
        certain = (line.text if line.final else line.committed).strip()
        if not certain:
            return ""
        # The first language heard names the whole: a Wyoming transcript has one.
        self.language = self.language or languages.code(line.language)
        before, self.text = self.text, f"{self._done}{joint(self._done, certain)}{certain}"
        return self.text[len(before) :]
