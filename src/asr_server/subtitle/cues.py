"""A cue: a text that is shown for some time."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cue:
    """`text` without line numbers or times; shown from `start_ms` until just before `end_ms`.

    "\\n" separates lines. `translation`: the same in another language, shown below in bilingual subtitles.
    """

    start_ms: int
    end_ms: int
    text: str
    translation: str = ""

    @property
    def lines(self) -> list[str]:
        """All lines as a file can contain them: none empty, no control characters, no space at either end."""
        return [*text_lines(self.text), *text_lines(self.translation)]


def text_lines(text: str) -> list[str]:
    """The lines of a text, without control characters and empty lines, which would end a cue in SRT and WebVTT."""
    cleaned = (_without_controls(line).strip() for line in text.splitlines())
    return [line for line in cleaned if line]


def _without_controls(line: str) -> str:
    return (
        "".join(" " if unicodedata.category(char) == "Cc" else char for char in line)
        if not line.isprintable()
        else line
    )
