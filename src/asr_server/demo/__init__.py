"""The bundled demo model: where its checkpoint, its aligner and its recording lie. Loads none of them.

The package `asr_training`, which is not installed with the server, made them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """A recording (WAV, 16 kHz mono 16-bit) and the words that are said in it."""

    recording: Path
    text: str


def checkpoint_path() -> Path:
    """The folder of the demo checkpoint, in the layout that the SDK loads."""
    return _FOLDER / "checkpoint"


def aligner_path() -> Path:
    """The folder of the demo aligner's checkpoint, in the layout that the SDK loads."""
    return _FOLDER / "aligner"


def sample() -> Sample:
    """The bundled recording, in a voice that no training set held."""
    audio = _FOLDER / "audio"
    return Sample(audio / "hello.wav", (audio / "hello.txt").read_text(encoding="utf-8").strip())
