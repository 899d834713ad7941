"""Who spoke when: what speaker diarisation returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # the gateway checks forms with `MAX_SPEAKERS`, and has no numpy
    import numpy as np
    from numpy.typing import NDArray

# A direction in the space of voices: (dimensions,) float32 of length 1. Near directions are the same voice.
VoicePrint: TypeAlias = "NDArray[np.float32]"

# More people than this are not told apart: further voices are given to the most similar of them.
MAX_SPEAKERS = 40


@dataclass(frozen=True, slots=True)
class SpeakerCount:
    """How many people speak, as far as the caller knows. `at_least` == `at_most` is an exact number."""

    at_least: int = 1
    at_most: int = MAX_SPEAKERS


@dataclass(frozen=True, slots=True)
class Turn:
    """Speech of one speaker without a pause. Turns of different speakers may overlap.

    `speaker`: an index, counted from 0 in the order in which the speakers begin. `confidence` (0..1): how much nearer
    the voice is to this speaker than to the next one; 1 where there is one speaker.
    """

    speaker: int
    start_ms: int
    end_ms: int
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class Diarization:
    """The turns of one recording in the order of their beginnings, and the voice of each speaker, by index."""

    turns: tuple[Turn, ...] = ()
    voice_prints: tuple[VoicePrint, ...] = ()


def label(speaker: int) -> str:
    """The name of a speaker whom nobody has named: A to Z, then AA, AB and so on, as OpenAI's answers have it."""
    letters = ""
    speaker += 1
    while speaker:
        speaker, letter = divmod(speaker - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
