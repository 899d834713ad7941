"""The phrase corpus: random phrases in every voice of a role, on disk.

A corpus is a folder with `samples.i16` (all clips end to end, 16 kHz mono int16) and `index.json` (the places of the
clips and their words).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from asr_training.phrases import phrase
from asr_training.speech import Speech, SpokenWord, WordsNotPlaced
from asr_training.synthesis import require, speak
from asr_training.vocabulary import Language
from asr_training.voices import Engine, Role, Voice, random_style, voices

PHRASES_PER_TAKE = 12
FULL_SCALE = 32767
# flite has few voices, each worth as much as an espeak-ng voice with all its variants.
TAKES_PER_VOICE = {Engine.ESPEAK: 6, Engine.FLITE: 40, Engine.FESTIVAL: 6}


@dataclass(frozen=True)
class Recording:
    """One phrase in the corpus: `length` samples from `offset` on."""

    offset: int
    length: int
    words: tuple[SpokenWord, ...]


@dataclass(frozen=True)
class Take:
    """Phrases spoken by one voice in one style."""

    voice: Voice
    recordings: tuple[Recording, ...]


@dataclass(frozen=True)
class Corpus:
    """All takes of a role; `samples` is a read-only int16 memory map of shape (samples,)."""

    samples: NDArray[np.int16]
    takes: tuple[Take, ...]

    def of(self, language: Language) -> tuple[Voice, ...]:
        return tuple(voice for voice in self._by_voice if voice.language is language)

    def by(self, voice: Voice) -> tuple[Recording, ...]:
        return self._by_voice[voice]

    @cached_property
    def _by_voice(self) -> dict[Voice, tuple[Recording, ...]]:
        recordings: dict[Voice, tuple[Recording, ...]] = {}
        for take in self.takes:
            recordings[take.voice] = recordings.get(take.voice, ()) + take.recordings
        return recordings

    def speech(self, recording: Recording) -> Speech:
        """A recording as float32 samples in -1..1 with its words."""
        raw = self.samples[recording.offset : recording.offset + recording.length]
        return Speech(raw.astype(np.float32) / np.float32(FULL_SCALE), recording.words)


@dataclass(frozen=True)
class _Job:
    voice: Voice
    seed: str


def open_corpus(folder: Path, role: Role, seed: int, takes_share: float = 1.0) -> Corpus:
    """Open the corpus in `folder`, or make it if it is missing. Raises `SynthesisUnavailable`."""
    if not (folder / "index.json").is_file():
        _make(folder, list(_jobs(role, seed, takes_share)))
    index = json.loads((folder / "index.json").read_text())
    samples = np.memmap(folder / "samples.i16", dtype=np.int16, mode="r")
    return Corpus(samples, tuple(_take(entry) for entry in index))


def _jobs(role: Role, seed: int, takes_share: float) -> Iterator[_Job]:
    for language in Language:
        for voice in voices(role, language):
            count = max(1, round(TAKES_PER_VOICE[voice.engine] * takes_share))
            for number in range(count):
                yield _Job(voice, f"{seed}/{voice.name}/{number}")


def _make(folder: Path, jobs: list[_Job]) -> None:
    for engine in {job.voice.engine for job in jobs}:
        require(engine)
    folder.mkdir(parents=True, exist_ok=True)
    index, offset = [], 0
    with ProcessPoolExecutor(2) as pool, open(folder / "samples.i16", "wb") as file:
        for job, take in zip(jobs, pool.map(_spoken, jobs, chunksize=8), strict=True):
            entry, offset = _written(job.voice, take, file, offset)
            index.append(entry)
    (folder / "index.json").write_text(json.dumps(index, ensure_ascii=False))


def _spoken(job: _Job) -> list[Speech]:
    rng = random.Random(job.seed)
    style = random_style(rng, job.voice.language)
    take: list[Speech] = []
    while len(take) < PHRASES_PER_TAKE:
        try:
            take.append(speak(job.voice, style, phrase(rng, job.voice.language)))
        except WordsNotPlaced:
            continue
    return take


def _written(voice: Voice, take: list[Speech], file: BinaryIO, offset: int) -> tuple[dict[str, object], int]:
    recordings = []
    for speech in take:
        file.write((np.clip(speech.samples, -1, 1) * FULL_SCALE).astype(np.int16).tobytes())
        words = [[word.text, word.start, word.end] for word in speech.words]
        recordings.append([offset, len(speech.samples), words])
        offset += len(speech.samples)
    return {"voice": [voice.engine, voice.name, voice.language], "recordings": recordings}, offset


def _take(entry: dict[str, Any]) -> Take:
    engine, name, language = entry["voice"]
    recordings = tuple(
        Recording(offset, length, tuple(SpokenWord(*word) for word in words))
        for offset, length, words in entry["recordings"]
    )
    return Take(Voice(Engine(engine), name, Language(language)), recordings)
