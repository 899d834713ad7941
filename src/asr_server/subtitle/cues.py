"""Cues, each a text that is shown for some time, and their limits. `cue_segmentation` says which limit gives way."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from asr_server.text.scripts import TURNING


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
        "".join(" " if unicodedata.category(char) == "Cc" else char for char in line if char not in TURNING)
        if not line.isprintable()
        else line
    )


class SpeakerStyle(StrEnum):
    """The way in which cues show who speaks: by name, by dashes before the lines of two people in one cue, or not at
    all."""

    NAME = "name"
    DASH = "dash"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CueConfig:
    """The limits of cues. Columns are display columns: a CJK character has two, a combining mark none.

    Raises `ValueError` for limits that no cue can meet.
    """

    max_duration_ms: int = 7000
    min_duration_ms: int = 833
    min_gap_ms: int = 83  # between two cues
    pause_ms: int = 500  # a silence of this length ends a cue
    max_line_columns: int = 42
    max_lines: int = 2
    reading_speed: float = 20.0  # characters of one column a second at most
    wide_reading_speed: float = 9.0  # characters of two columns a second at most
    speaker_style: SpeakerStyle = SpeakerStyle.NAME  # for passages with speakers

    def __post_init__(self) -> None:
        if not 0 < self.min_duration_ms <= self.max_duration_ms:
            raise ValueError("the minimum duration must be positive and no longer than the maximum")
        if min(self.min_gap_ms, self.pause_ms) < 0:
            raise ValueError("gaps and pauses cannot be negative")
        if self.max_line_columns < 2 or self.max_lines < 1:
            raise ValueError("a cue needs a line of two columns at least")
        if min(self.reading_speed, self.wide_reading_speed) <= 0:
            raise ValueError("reading speeds must be positive")

    def reading_ms(self, columns: int, wide: int) -> float:
        return 1000 * ((columns - 2 * wide) / self.reading_speed + wide / self.wide_reading_speed)
