"""Phrases of real people with their words: the recordings of one speaker each, cut to where speech is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from asr_server.audio.segmentation import SpeechProbability
from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, SAMPLE_RATE
from E2Etest.drive import recordings

# Silero's own threshold of 0.5 misses single spoken digits in these recordings.
THRESHOLD = 0.3
# Shorter than any spoken word: such frames in the Kennedy recording are noises of the room.
SHORTEST_SPEECH_S = 0.1
# Scoring tools join speech across shorter pauses, since speakers pause that long inside a sentence.
LONGEST_INNER_PAUSE_S = 0.5
# What is kept on both sides of the speech, so that no sound is cut off.
MARGIN_S = 0.15
USUAL_RMS = 0.06
SEVERAL = "several"
# The others say digits, of which the English model often skips some or dates them by seconds wrong.
SENTENCES = ("allison", "cmu-1", "jfk", "librivox-reader")
# The recording has pauses of about a second, and turns of a conversation have not.
_KENNEDY = (
    "And so, my fellow Americans,",
    "ask not",
    "what your country can do for you.",
    "Ask what you can do for your country.",
)


@dataclass(frozen=True)
class Phrase:
    """float32 (n,) at 16 kHz with the usual loudness of speech; where in it somebody speaks, in seconds; the words."""

    audio: np.ndarray
    speech: tuple[tuple[float, float], ...]
    words: tuple[str, ...]


@cache
def voices() -> dict[str, tuple[Phrase, ...]]:
    """Return the phrases of each speaker of the recordings. The film's are left out: several people speak in each."""
    found: dict[str, list[Phrase]] = {}
    for clip in recordings.real_clips():
        if clip.voice != SEVERAL:
            texts = _KENNEDY if clip.kind == "jfk.flac" else (clip.text,)
            found.setdefault(clip.voice, []).extend(_phrases(recordings.waveform(clip.path), texts))
    return {speaker: tuple(phrases) for speaker, phrases in found.items()}


def speech_of(audio: np.ndarray) -> list[tuple[float, float]]:
    """Return where voice detection finds speech in a clean recording, float32 (n,): (start, end) in seconds."""
    voiced = SpeechProbability().push(audio) >= THRESHOLD
    edges = np.flatnonzero(np.diff(np.concatenate(([0], voiced.astype(int), [0])))) * FRAME_MS / 1000
    runs = [(start, end) for start, end in edges.reshape(-1, 2).tolist() if end - start >= SHORTEST_SPEECH_S]
    cuts = [(a[1], b[0]) for a, b in pairwise(runs) if b[0] - a[1] > LONGEST_INNER_PAUSE_S]
    if not runs:
        return []
    starts, ends = [runs[0][0], *(b for _, b in cuts)], [*(a for a, _ in cuts), runs[-1][1]]
    return list(zip(starts, ends, strict=True))


def _phrases(audio: np.ndarray, texts: tuple[str, ...]) -> list[Phrase]:
    """One phrase for each text: all of the recording, or as many pieces as there are texts, cut at its pauses."""
    speech = speech_of(audio)
    if len(texts) == 1:
        return [_phrase(audio, speech, texts[0])]
    assert len(speech) == len(texts), speech
    return [_phrase(audio, [region], text) for region, text in zip(speech, texts, strict=True)]


def _phrase(audio: np.ndarray, speech: list[tuple[float, float]], text: str) -> Phrase:
    begin = max(0, int((speech[0][0] - MARGIN_S) * SAMPLE_RATE))
    cut = audio[begin : int((speech[-1][1] + MARGIN_S) * SAMPLE_RATE)]
    regions = tuple(
        (start - begin / SAMPLE_RATE, min(end, (begin + len(cut)) / SAMPLE_RATE) - begin / SAMPLE_RATE)
        for start, end in speech
    )
    spoken = np.concatenate([cut[int(a * SAMPLE_RATE) : int(b * SAMPLE_RATE)] for a, b in regions])
    assert len(spoken) >= FRAME_SAMPLES
    loudness = np.sqrt(np.mean(spoken.astype(np.float64) ** 2))
    return Phrase((cut * (USUAL_RMS / loudness)).astype(np.float32), regions, tuple(recordings.plain_words(text)))
