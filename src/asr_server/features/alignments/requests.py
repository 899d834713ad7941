"""The request to find the words of a text in a recording, and the words of the answer. Server and client share them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from asr_server.core.transcript import Word
from asr_server.recordings.requests import RecordingRequest

# A reader needs more than five hours for this many characters of English.
MAX_CHARS = 300_000


class AlignmentFormat(StrEnum):
    """The formats of the answer: for programs, for subtitles, for spreadsheets and for Praat."""

    JSON = "json"
    SRT = "srt"
    VTT = "vtt"
    TSV = "tsv"
    TEXTGRID = "textgrid"


@dataclass(frozen=True, kw_only=True)
class AlignmentRequest(RecordingRequest):
    """`POST /v1/audio/alignments`."""

    text: str  # at most `MAX_CHARS` characters, with a letter or digit; each line is a segment of the answer
    answer: AlignmentFormat = AlignmentFormat.JSON
    task: Literal["alignment"] = "alignment"


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word of the given text."""

    text: str
    score: float  # see `matching.Match`
    time: Word | None  # None if it was not heard
