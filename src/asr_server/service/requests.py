"""What a caller wants, checked: the nouns between the wire and the use cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from asr_server.audio.segmentation.config import SegmentationConfig
from asr_server.scheduling.job import Priority


class ResponseFormat(StrEnum):
    """The shapes a transcript can leave in."""

    JSON = "json"
    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    VERBOSE_JSON = "verbose_json"

    @property
    def is_subtitles(self) -> bool:
        """Whether it is a file of cues."""
        return self in (ResponseFormat.SRT, ResponseFormat.VTT)


class WordTimes(StrEnum):
    """How words get their times, if they do."""

    NONE = "none"
    ESTIMATED = "estimated"
    ALIGNED = "aligned"


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """How to transcribe one recording.

    `language`: the model's name of a language to force, or None to let it find out. `context`: names and terms to
    listen for, any text. `temperature`: 0 is greedy and repeatable. `words`: whether segments get words, and how those
    get their times. `cutting`: where the recording may be cut. `timeout_s`: another time limit than the server's.
    """

    language: str | None = None
    context: str = ""
    temperature: float = 0.0
    words: WordTimes = WordTimes.NONE
    cutting: SegmentationConfig = field(default_factory=SegmentationConfig)
    priority: Priority = Priority.INTERACTIVE
    timeout_s: float | None = None


def context(prompt: str, hotwords: list[str]) -> str:
    """One system-turn text of a free prompt and a list of words to listen for."""
    return "\n".join(part for part in (prompt.strip(), ", ".join(hotwords)) if part)
