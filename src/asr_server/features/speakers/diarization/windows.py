"""Speech in a window of ten seconds: pieces of one person each with their voices, and times when several speak."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization.clustering import Plda
from asr_server.features.speakers.diarization.models import WINDOW_SAMPLES, Activity, Embedding, Samples, Segmentation
from asr_server.features.speakers.diarization.turns import VoicePrint

_PIECE_SAMPLES = 2 * SAMPLE_RATE
_LONGEST_PIECE_SAMPLES = _PIECE_SAMPLES * 11 // 10
# A shorter piece is analysed together with the same person's speech before and after it: voices of 3 s are easier to
# compare than voices of 2 s, while 4 s more often contain other people, if the segmentation missed a change.
_HEARD_SAMPLES = 3 * SAMPLE_RATE
# Across a longer pause, the segmentation often takes another person for the same one.
_LONGEST_PAUSE_SAMPLES = SAMPLE_RATE // 2
# Less sound gives no usable voice.
_LEAST_SAMPLES = SAMPLE_RATE // 2


@dataclass(frozen=True, slots=True)
class SpeakerModels:
    """The models that analyse the sound."""

    segmentation: Segmentation
    embedding: Embedding
    plda: Plda | None = None  # None if the embedding comes without one


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Speech of one person, without others."""

    begin: int  # in samples from the start of the recording
    end: int  # as `begin`, after the last sample
    track: tuple[int, int]  # the window, and which of the people in it
    voice: VoicePrint | None  # None if there was too little sound for it
    voice_s: float  # seconds of sound that it was made of, which may be more than the piece

    @property
    def duration_s(self) -> float:
        return (self.end - self.begin) / SAMPLE_RATE


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Several people who speak at once."""

    begin: int  # in samples from the start of the recording
    end: int  # as `begin`, after the last sample
    # by each person's track: where only this person speaks, in the whole window and not just its used part, in samples
    tracks: Mapping[tuple[int, int], Sequence[tuple[int, int]]]


def analyse(
    models: SpeakerModels, sound: Samples, number: int, start: int, used: tuple[int, int]
) -> tuple[list[Piece], list[Overlap]]:
    """Return the speech in the used part of a window of up to 10 s.

    `number` counts windows; `start`: the place of the first sample in the recording; `used`: the part for which this
    window has enough sound on both sides, in samples of the recording.
    """
    active = models.segmentation(sound)
    frame = WINDOW_SAMPLES / len(active)
    # Frames in which the used part begins or ends are cut there, so that windows leave no gaps and do not overlap.
    low = math.floor((used[0] - start) / frame)
    high = math.ceil((used[1] - start) / frame)

    def place(of_frame: int) -> int:
        return min(max(start + round(of_frame * frame), used[0]), used[1])

    alone = active & (active.sum(axis=1, keepdims=True) == 1)
    pieces, overlaps = [], []
    alone_at: list[list[tuple[int, int]]] = [[] for _ in range(active.shape[1])]
    for person in range(active.shape[1]):
        for begin, end in _runs(alone[:, person]):
            alone_at[person].append((start + round(begin * frame), start + round(end * frame)))
            speech = _continued((begin, end), active, person, round(_LONGEST_PAUSE_SAMPLES / frame))
            around = (round(speech[0] * frame), min(round(speech[1] * frame), len(sound)))
            for first, last in _divided(max(begin, low), min(end, high), frame):
                heard = _heard(sound, (round(first * frame), round(last * frame)), around)
                voice = models.embedding(heard) if len(heard) >= _LEAST_SAMPLES else None
                track = (number, person)
                pieces.append(Piece(place(first), place(last), track, voice, len(heard) / SAMPLE_RATE))
    several = active.sum(axis=1) >= 2
    several[:low] = several[high:] = False
    for begin, end in _runs(several):
        people = np.flatnonzero(active[begin:end].any(axis=0)).tolist()
        tracks = {(number, person): alone_at[person] for person in people}
        overlaps.append(Overlap(place(begin), place(end), tracks))
    return [piece for piece in pieces if piece.end > piece.begin], overlaps


def _continued(run: tuple[int, int], active: Activity, person: int, longest_pause: int) -> tuple[int, int]:
    """Return the run extended by the same person's speech around it, as long as pauses are short and nobody else
    speaks."""
    others = np.delete(active, person, axis=1).sum(axis=1) > 0
    low = _reach(active[: run[0], person][::-1], others[: run[0]][::-1], longest_pause)
    high = _reach(active[run[1] :, person], others[run[1] :], longest_pause)
    return run[0] - low, run[1] + high


def _reach(own: Activity, others: Activity, longest_pause: int) -> int:
    """Return how many frames from the first one on there are to the end of one person's speech."""
    end = 0
    for frame in range(int(others.argmax()) if others.any() else len(others)):
        if own[frame]:
            end = frame + 1
        elif frame - end >= longest_pause:
            break
    return end


def _heard(sound: Samples, piece: tuple[int, int], around: tuple[int, int]) -> Samples:
    """Return the sound of a piece; if it is short, with the same person's speech before and after it."""
    wanted = max(_HEARD_SAMPLES, piece[1] - piece[0])
    begin = max(around[0], piece[0] - (wanted - (piece[1] - piece[0])) // 2)
    end = min(around[1], begin + wanted)
    return sound[max(around[0], end - wanted) : end]


def _runs(active: Activity) -> Iterator[tuple[int, int]]:
    """Return the stretches of True as (begin, end)."""
    changes = np.diff(np.pad(active.astype(np.int8), 1))
    return zip(np.flatnonzero(changes == 1).tolist(), np.flatnonzero(changes == -1).tolist(), strict=True)


def _divided(begin: int, end: int, frame: float) -> Iterator[tuple[int, int]]:
    """Divide the frames from `begin` to `end` into equal parts of about 2 s; no frames give no parts."""
    if end <= begin:
        return
    edges = np.linspace(begin, end, max(1, math.ceil((end - begin) * frame / _LONGEST_PIECE_SAMPLES)) + 1)
    edges = edges.round().astype(int)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
