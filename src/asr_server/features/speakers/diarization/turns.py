"""The result of speaker diarisation: the turns of each speaker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from asr_server.core.transcript import MAX_SPEAKERS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A direction in the space of voices: (dimensions,) float32 of length 1. Similar directions are the same voice.
VoicePrint: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True, slots=True)
class SpeakerCount:
    """The caller's limits for the number of people who speak; both are equal for an exact number."""

    at_least: int = 1
    at_most: int = MAX_SPEAKERS


@dataclass(frozen=True, slots=True)
class Turn:
    """Speech of one speaker without a pause. Turns of different speakers may overlap."""

    speaker: int  # an index, counted from 0 in the order in which the speakers begin
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Diarization:
    """The speakers of one recording."""

    turns: tuple[Turn, ...] = ()  # in the order of their beginnings
    voice_prints: tuple[VoicePrint, ...] = ()  # the voice of each speaker, by index


def label(speaker: int) -> str:
    """Return the letters that stand for a speaker without a name: A to Z, then AA, AB and so on, as in OpenAI's
    answers."""
    letters = ""
    speaker += 1
    while speaker:
        speaker, letter = divmod(speaker - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
