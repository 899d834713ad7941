"""Lines of a live session, and how they are read from the messages of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asr_server.core.transcript import SpeakerRun, TimeSource, Word


@dataclass(frozen=True, slots=True)
class Line:
    """The text of one utterance so far. It replaces the last line of the same `utterance`.

    With word times, a final that has text comes a second time, with its `words`.
    """

    utterance: int  # counts the utterances of the session
    committed: str  # text that only grows
    tentative: str  # text that may still change
    ending: str  # "" while the utterance is open, then `pause`, `cut`, `flush` or `close`
    language: str
    start_s: float  # since the session began
    end_s: float  # since the session began
    lag_ms: int
    words: tuple[Word, ...] = ()
    speaker: str | None = None  # with two channels, the speaker on the line's channel
    # where speakers are wanted, the committed text in runs of one speaker; a line comes again when they change
    speakers: tuple[SpeakerRun, ...] = ()
    speakers_settled: bool = False  # they will not change any more

    @property
    def text(self) -> str:
        """Committed and tentative text."""
        return self.committed + self.tentative

    @property
    def final(self) -> bool:
        """True if the line is the last one of its utterance."""
        return bool(self.ending)


def line_of(message: dict[str, Any]) -> Line:
    """A text message as a line."""
    return Line(
        utterance=message["utterance"],
        committed=message["committed"],
        tentative=message["tentative"],
        ending=message.get("ending", "flush") if message["is_final"] else "",
        language=message["language"],
        start_s=message["start"],
        end_s=message["end"],
        lag_ms=message["lag_ms"],
        speaker=message.get("speaker"),
        speakers=runs_of(message),
        speakers_settled=message.get("speakers_settled", False),
    )


def runs_of(message: dict[str, Any]) -> tuple[SpeakerRun, ...]:
    """Return who spoke, in a text message or a later update; empty where speakers are not wanted."""
    return tuple(SpeakerRun(run["speaker"], run["text"]) for run in message.get("speakers", ()))


def word_of(word: dict[str, Any]) -> Word:
    """A word of a message with word times."""
    times_ms = round(1000 * word["start"]), round(1000 * word["end"])
    return Word(word["word"], *times_ms, TimeSource(word["source"]), speaker=word.get("speaker"))
