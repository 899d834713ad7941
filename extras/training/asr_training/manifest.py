"""The list of recorded test clips beside the clips: reads and writes `manifest.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import soundfile

from asr_training.speech import Wave
from asr_training.vocabulary import Language

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Clip:
    """A recording and its text.

    `language` is `None` and `text` empty without speech. `kind`: what the clip tests. `phrases_s`: begin and end of the
    phrases of a long recording, in seconds; empty for short ones.
    """

    file: str
    text: str
    language: Language | None
    voice: str
    kind: str
    seconds: float
    phrases_s: tuple[tuple[float, float], ...] = ()

    def samples(self, folder: Path) -> Wave:
        """The recording in `folder`: float32 mono at 16 kHz in -1..1, shape (samples,)."""
        return soundfile.read(folder / self.file, dtype="float32")[0]


def read_manifest(folder: Path) -> tuple[Clip, ...]:
    """The clips in `folder`, in order. Raises `FileNotFoundError` if there is no manifest."""
    return tuple(_clip(entry) for entry in json.loads((folder / MANIFEST).read_text()))


def write_manifest(folder: Path, clips: Sequence[Clip]) -> None:
    """Write the manifest of `clips` into `folder`, one clip a line."""
    lines = (json.dumps(asdict(clip), ensure_ascii=False) for clip in clips)
    (folder / MANIFEST).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _clip(entry: dict[str, Any]) -> Clip:
    language = Language(entry["language"]) if entry["language"] else None
    phrases = tuple((start, end) for start, end in entry["phrases_s"])
    return Clip(**{**entry, "language": language, "phrases_s": phrases})
