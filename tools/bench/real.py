"""What does the server lose of real speech against its engine alone? Files and live, single and joined recordings.

The engine alone gets each recording whole, as one row. The server has to find the speech, cut it, and join the parts; a
live session has to commit words besides. Joined recordings have noise below their parts and three levels; between the
parts are pauses, noise and chords. The engine alone then gets each part with the noise below it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from asr_server import feature_list
from asr_server.core import settings
from asr_server.engine import capabilities, core
from asr_server.engine.protocol import Utterance
from asr_server.features.moonshine import package
from E2Etest.drive import recordings
from E2Etest.drive.process import ready
from tools.bench.engines import percentiles, run
from tools.bench.live import talk

RATE = 16_000
KINDS = ("jfk", "librivox", "phone", "goforward", "something")
LEVELS_DB = (0.0, -12.0, -24.0)
MINUTES = (5, 20)
PAUSE = np.zeros(RATE, np.int16)


@dataclass(frozen=True)
class Part:
    """Samples float32 (n,) in which `words` are said."""

    audio: np.ndarray
    words: list[str]


def measure(speed: float = 1.0) -> dict[str, object]:
    """Word errors of the engine alone, of the server and of live sessions; `speed` is times real time."""
    clips = [
        Part(recordings.waveform(clip.path), recordings.plain_words(clip.text))
        for clip in recordings.real_clips(*KINDS)
    ]
    scenes = [
        Part(recordings.waveform(clip.path), recordings.plain_words(clip.text))
        for clip in recordings.real_clips("film")
        if clip.seconds <= 20
    ]
    resolved = feature_list.resolve(settings.load(model_id=package.MODEL_ID), capabilities.probe())
    engine = core.build_engine(resolved)
    engine.load()
    with tempfile.TemporaryDirectory() as folder, ready(Path(folder) / "log", MODEL_ID=package.MODEL_ID) as server:
        found = {name: _singles(engine, server, parts) for name, parts in (("clips", clips), ("scenes", scenes))}
        for minutes in MINUTES:
            found[f"joined_{minutes}_min"] = _joined(engine, server, clips, minutes)
        found["live"] = _live(server, clips, speed)
    return {
        "question": "Word errors of the whole server and of live sessions against the engine alone, on real speech",
        "model": package.MODEL_ID,
        "times_real_time": speed,
        **found,
        "target": "server minus engine at most 1 point on clips, 2 on joined recordings; live at most 2 over files; "
        "0 retracted",
    }


def joined(parts: Sequence[Part], seconds: float, seed: int = 0) -> tuple[np.ndarray, list[Part]]:
    """A recording of about that length, and its parts as they sound in it."""
    rng, pieces, placed, length = np.random.default_rng(seed), [], [], 0
    while length < seconds * RATE:
        part = parts[rng.integers(len(parts))]
        level = 10 ** (LEVELS_DB[rng.integers(len(LEVELS_DB))] / 20)
        between = _between(rng, int(rng.uniform(0.3, 4.0) * RATE))
        pieces += [between, part.audio * level]
        placed.append((length + len(between), part))
        length += len(between) + len(part.audio)
    noise = rng.normal(0, 10 ** (-55 / 20), length).astype(np.float32)
    whole = np.clip(np.concatenate(pieces) + noise, -1, 1).astype(np.float32)
    return whole, [Part(whole[at : at + len(part.audio)], part.words) for at, part in placed]


def _between(rng: np.random.Generator, count: int) -> np.ndarray:
    """Silence, louder noise, or a chord."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.normal(0, 0.01, count).astype(np.float32)
    if kind == 1:
        times = np.arange(count) / RATE
        tones = sum(np.sin(2 * np.pi * 110 * 2 ** (note / 12) * times) for note in (0, 4, 7, 12))
        return (0.03 * tones * np.hanning(count)).astype(np.float32)
    return np.zeros(count, np.float32)


def _singles(engine, server, parts: Sequence[Part]) -> dict[str, object]:
    alone = [answer.text for answer in run(engine, [Utterance(part.audio) for part in parts])[0]]
    served = [_served(server, part.audio) for part in parts]
    return _figures(parts, alone, served)


def _joined(engine, server, clips: Sequence[Part], minutes: float) -> dict[str, object]:
    whole, parts = joined(clips, 60 * minutes)
    alone = [answer.text for answer in run(engine, [Utterance(part.audio) for part in parts])[0]]
    together = Part(whole, [word for part in parts for word in part.words])
    began_s = time.monotonic()
    served = _served(server, whole)
    speed = len(whole) / RATE / (time.monotonic() - began_s)
    return {**_figures([together], [" ".join(alone)], [served]), "server_times_real_time": round(speed, 1)}


def _figures(parts: Sequence[Part], alone: Sequence[str], served: Sequence[str]) -> dict[str, object]:
    return {
        "seconds": round(sum(len(part.audio) for part in parts) / RATE),
        "words": sum(len(part.words) for part in parts),
        "engine_errors": errors(parts, alone),
        "server_errors": errors(parts, served),
    }


def errors(parts: Sequence[Part], texts: Sequence[str]) -> int:
    """Words that are wrong, missing or too many."""
    return sum(
        recordings.word_errors(part.words, recordings.plain_words(text))
        for part, text in zip(parts, texts, strict=True)
    )


def _served(server, audio: np.ndarray) -> str:
    return server.transcribe(recordings.wav((audio * 32767).astype(np.int16))).json()["text"]


def _live(server, parts: Sequence[Part], speed: float) -> dict[str, object]:
    talks = [talk(server, np.concatenate([(part.audio * 32767).astype(np.int16), PAUSE]), speed) for part in parts]
    return {
        "words": sum(len(part.words) for part in parts),
        "errors": errors(parts, [" ".join(one.finals) for one in talks]),
        "retracted_words": sum(one.retracted for one in talks),
        "first_words_ms": percentiles(one.first_ms for one in talks),
        "commit_lag_ms": percentiles(one.commit_ms for one in talks),
        "endpoint_to_final_ms": percentiles(one.endpoint_ms for one in talks),
    }
