"""The data of the demonstration: the checkpoint and the aligner of its own model, and two recordings. Loads nothing.

`extras/training` made them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """A recording and its words."""

    recording: Path  # 16 kHz, mono, 16-bit
    text: str  # the words that are said in it


def words(text: str) -> list[str]:
    """Return the words without punctuation and capitals, which are a matter of taste."""
    return re.findall(r"\w+", text.lower())


def checkpoint_path() -> Path:
    """Return the folder of the demo checkpoint, in the layout that the SDK loads."""
    return _FOLDER / "checkpoint"


def aligner_path() -> Path:
    """Return the folder of the demo aligner's checkpoint, in the layout that the SDK loads."""
    return _FOLDER / "aligner"


def sample() -> Sample:
    """Words that the demo checkpoint knows, in a voice that no training set held."""
    return _sample("hello.wav")


def speech() -> Sample:
    """Real speech: from John F. Kennedy's inaugural address of 1961, public domain."""
    return _sample("jfk.flac")


def _sample(name: str) -> Sample:
    recording = _FOLDER / "audio" / name
    return Sample(recording, recording.with_suffix(".txt").read_text(encoding="utf-8").strip())
