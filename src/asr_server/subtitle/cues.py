"""A cue: a text that is shown for some time."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Cue:
    """A subtitle, without line numbers."""

    start_ms: int  # it is shown from here,
    end_ms: int  # until just before this
    text: str  # "\\n" separates lines
    translation: str = ""  # the same in another language, shown below in bilingual subtitles
    speaker: str = ""  # the name that files show, which is no part of the text; "" for none

    @property
    def lines(self) -> list[str]:
        """Return all lines as a file can contain them: none empty, no control characters, no space at either end."""
        return [*text_lines(self.text), *text_lines(self.translation)]


def named(speaker: str, text: str) -> str:
    """Return a text after the name of its speaker, for formats that have no other place for a name."""
    return f"{speaker}: {text}"


def with_names(cues: Iterable[Cue]) -> Iterator[Cue]:
    """Yield the cues, with the name of the speaker before the text where the cue before has another speaker."""
    before = ""
    for cue in cues:
        yield cue if cue.speaker in ("", before) else replace(cue, text=named(cue.speaker, cue.text))
        before = cue.speaker


def text_lines(text: str) -> list[str]:
    """Return the lines of a text, without control characters and empty lines, which would end a cue in SRT and
    WebVTT."""
    cleaned = (_without_controls(line).strip() for line in text.splitlines())
    return [line for line in cleaned if line]


def _without_controls(line: str) -> str:
    return (
        "".join(" " if unicodedata.category(char) == "Cc" else char for char in line)
        if not line.isprintable()
        else line
    )
