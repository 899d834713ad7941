"""A cue: a text that is shown for some time."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Cue:
    """`text` without line numbers or times; shown from `start_ms` until just before `end_ms`.

    "\\n" separates lines. `translation`: the same in another language, shown below in bilingual subtitles. `speaker`:
    the name that files show, which is no part of the text; "" for none.
    """

    start_ms: int
    end_ms: int
    text: str
    translation: str = ""
    speaker: str = ""

    @property
    def lines(self) -> list[str]:
        """All lines as a file can contain them: none empty, no control characters, no space at either end."""
        return [*text_lines(self.text), *text_lines(self.translation)]


def named(speaker: str, text: str) -> str:
    """A text behind the name of its speaker, for formats that have no other place for a name."""
    return f"{speaker}: {text}"


def with_names(cues: Iterable[Cue]) -> Iterator[Cue]:
    """The cues, with the name of the speaker before the text where the cue before has another speaker."""
    before = ""
    for cue in cues:
        yield cue if cue.speaker in ("", before) else replace(cue, text=named(cue.speaker, cue.text))
        before = cue.speaker


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
