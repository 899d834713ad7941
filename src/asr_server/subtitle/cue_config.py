"""The limits of a good cue. `cue_segmentation.py` says which limit gives way to which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
        """Time to read a text of `columns`, `wide` of its characters taking two of them."""
        return 1000 * ((columns - 2 * wide) / self.reading_speed + wide / self.wide_reading_speed)
