"""Who speaks when in one recording, whose samples come bit by bit.

Windows of 10 s every 2.5 s say who of up to three people speaks, each for itself. Only the middle of a window is used,
where it has context on both sides. Speech of one person alone is cut into pieces of about 2 s, and each becomes a voice
vector. At the end the vectors are clustered, over the whole recording.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from asr_server.core.audio import SAMPLE_RATE, samples_to_ms
from asr_server.speakers import clustering
from asr_server.speakers.clustering import Pieces, Plda, Vectors
from asr_server.speakers.models import WINDOW_SAMPLES, Activity, Embedding, Samples, Segmentation
from asr_server.speakers.turns import Diarization, SpeakerCount, Turn, VoicePrint

_STEP_SAMPLES = WINDOW_SAMPLES // 4
_EDGE_SAMPLES = (WINDOW_SAMPLES - _STEP_SAMPLES) // 2
_PIECE_SAMPLES = 2 * SAMPLE_RATE
_LONGEST_PIECE_SAMPLES = _PIECE_SAMPLES * 11 // 10
# Speech that is shorter has no usable vector; what the same person says in the window decides.
_LEAST_SAMPLES = SAMPLE_RATE // 2
# What is shorter than this, or than half of all pieces, does not decide how many speakers there are.
_CLEAR_S = 1.0
# Two pieces of one speaker that are nearer belong to one turn.
_GAP_MS = 50


@dataclass(frozen=True, slots=True)
class Models:
    """What a recording is analysed with. `plda` is None for embeddings that have none."""

    segmentation: Segmentation
    embedding: Embedding
    plda: Plda | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Speech of one person alone. `track`: the window and the person in it. `voice`: None if it is too short."""

    begin: int
    end: int
    track: tuple[int, int]
    voice: VoicePrint | None


@dataclass(slots=True)
class _Found:
    """What the windows so far have said: pieces of one person, and times with several, as (begin, end, tracks)."""

    pieces: list[_Piece] = field(default_factory=list)
    overlaps: list[tuple[int, int, list[tuple[int, int]]]] = field(default_factory=list)


class RecordingDiarizer:
    """One recording. It keeps 10 s of sound, and a vector for every 2 s of speech. For one thread."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._sound = np.zeros(0, np.float32)
        self._begin = 0  # the sample with which `_sound` begins
        self._done = 0  # the sample up to which the windows are used
        self._windows = 0
        self._found = _Found()

    def push(self, samples: Samples) -> None:
        """(n,) float32, mono, 16 kHz."""
        self._sound = np.concatenate([self._sound, samples])
        while len(self._sound) >= WINDOW_SAMPLES + _STEP_SAMPLES:
            self._window(self._begin + WINDOW_SAMPLES - _EDGE_SAMPLES)
            self._sound = self._sound[_STEP_SAMPLES:]
            self._begin += _STEP_SAMPLES

    def finish(self, count: SpeakerCount) -> Diarization:
        """All turns, when no more samples come."""
        end = self._begin + len(self._sound)
        if len(self._sound) > WINDOW_SAMPLES:
            self._window(self._begin + WINDOW_SAMPLES - _EDGE_SAMPLES)
            self._begin, self._sound = end - WINDOW_SAMPLES, self._sound[-WINDOW_SAMPLES:]
        if end > self._done:
            self._window(end)
        return _decided(self._found, count, self._models.plda)

    def _window(self, until: int) -> None:
        """Analyse the first 10 s of the sound, and use what is between `_done` and `until`."""
        sound = self._sound[:WINDOW_SAMPLES]
        active = self._models.segmentation(sound)
        frame = WINDOW_SAMPLES / len(active)
        used = (round((self._done - self._begin) / frame), round((until - self._begin) / frame))
        alone = active & (active.sum(axis=1, keepdims=True) == 1)
        for person in range(active.shape[1]):
            for begin, end in _runs(alone[:, person]):
                for first, last in _divided(max(begin, used[0]), min(end, used[1]), frame):
                    around = (round(begin * frame), round(end * frame))
                    voice = self._voice(sound, (round(first * frame), round(last * frame)), around)
                    place = (self._begin + round(first * frame), self._begin + round(last * frame))
                    self._found.pieces.append(_Piece(*place, (self._windows, person), voice))
        self._add_overlaps(active, used, frame)
        self._done, self._windows = until, self._windows + 1

    def _voice(self, sound: Samples, piece: tuple[int, int], around: tuple[int, int]) -> VoicePrint | None:
        """A short piece is heard with what the same person says before and after it without a pause."""
        missing = max(0, _PIECE_SAMPLES - (piece[1] - piece[0]))
        begin = max(around[0], piece[0] - missing // 2)
        end = min(around[1], len(sound), begin + max(_PIECE_SAMPLES, piece[1] - piece[0]))
        begin = max(around[0], min(begin, end - _PIECE_SAMPLES))
        if end - begin < _LEAST_SAMPLES:
            return None
        return self._models.embedding(sound[begin:end])

    def _add_overlaps(self, active: Activity, used: tuple[int, int], frame: float) -> None:
        several = active.sum(axis=1) >= 2
        several[: used[0]] = several[used[1] :] = False
        for begin, end in _runs(several):
            tracks = [(self._windows, int(person)) for person in np.flatnonzero(active[begin:end].any(axis=0))]
            place = (self._begin + round(begin * frame), self._begin + round(end * frame))
            self._found.overlaps.append((*place, tracks))


def _runs(active: Activity) -> Iterator[tuple[int, int]]:
    """The stretches of True as (begin, end)."""
    changes = np.diff(np.pad(active.astype(np.int8), 1))
    return zip(np.flatnonzero(changes == 1).tolist(), np.flatnonzero(changes == -1).tolist(), strict=True)


def _divided(begin: int, end: int, frame: float) -> Iterator[tuple[int, int]]:
    """Frames `begin` to `end` in equal parts of about 2 s; none if there are no frames."""
    if end <= begin:
        return
    edges = np.linspace(begin, end, max(1, math.ceil((end - begin) * frame / _LONGEST_PIECE_SAMPLES)) + 1)
    edges = edges.round().astype(int)
    yield from zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int
    speaker: int
    confidence: float


def _decided(found: _Found, count: SpeakerCount, plda: Plda | None) -> Diarization:
    heard = [piece for piece in found.pieces if piece.voice is not None]
    if not heard:
        # Somebody speaks, but never for long enough to be told from others.
        spans = [_Span(piece.begin, piece.end, 0, 0.0) for piece in found.pieces]
        return Diarization(_turns(spans))
    embeddings = np.array([piece.voice for piece in heard], np.float64)
    durations_s = np.array([(piece.end - piece.begin) / SAMPLE_RATE for piece in heard])
    clear = durations_s >= min(_CLEAR_S, float(np.median(durations_s)))
    centres = clustering.voices(Pieces(embeddings[clear], durations_s[clear]), count, plda)
    likeness = clustering.unit(embeddings) @ centres.T
    # What a track is like as a whole decides for its short pieces, and who it is where several speak.
    tracks: dict[tuple[int, int], Vectors] = defaultdict(lambda: np.zeros(len(centres)))
    for piece, like, duration_s in zip(heard, likeness, durations_s, strict=True):
        tracks[piece.track] += duration_s * like
    own = {piece: like for piece, like, is_clear in zip(heard, likeness, clear, strict=True) if is_clear}
    spans = [_span(piece.begin, piece.end, own.get(piece, tracks[piece.track])) for piece in found.pieces]
    for begin, end, several in found.overlaps:
        spans += [_span(begin, end, tracks[track]) for track in several]
    return _ordered(_all_known(spans), centres)


def _span(begin: int, end: int, likeness: Vectors) -> _Span:
    """`likeness` to each speaker; all zero where nothing is known. The speaker is -1 then."""
    if not likeness.any():
        return _Span(begin, end, -1, 0.0)
    speaker = int(likeness.argmax())
    others = np.delete(likeness / likeness.max(), speaker)
    return _Span(begin, end, speaker, 1 - max(0.0, float(others.max())) if len(others) else 1.0)


def _all_known(spans: list[_Span]) -> list[_Span]:
    """Speech too short to be recognised is that of whoever speaks nearest to it."""
    known = [span for span in spans if span.speaker >= 0]
    return [
        span
        if span.speaker >= 0
        else replace(
            span, speaker=min(known, key=lambda near: max(near.begin - span.end, span.begin - near.end)).speaker
        )
        for span in spans
    ]


def _ordered(spans: list[_Span], centres: Vectors) -> Diarization:
    """Speakers are numbered by their first turn."""
    first = sorted(
        {span.speaker for span in spans}, key=lambda speaker: min(s.begin for s in spans if s.speaker == speaker)
    )
    numbered = [replace(span, speaker=first.index(span.speaker)) for span in spans]
    prints = tuple(centres[speaker].astype(np.float32) for speaker in first)
    return Diarization(_turns(numbered), prints)


def _turns(spans: list[_Span]) -> tuple[Turn, ...]:
    """Spans of one speaker that follow each other are one turn."""
    turns: list[Turn] = []
    latest: dict[int, int] = {}  # the place of each speaker's latest turn
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        start_ms, end_ms = samples_to_ms(span.begin), samples_to_ms(span.end)
        place = latest.get(span.speaker)
        if place is None or start_ms > turns[place].end_ms + _GAP_MS:
            latest[span.speaker] = len(turns)
            turns.append(Turn(span.speaker, start_ms, end_ms, span.confidence))
            continue
        turn = turns[place]
        before, after = turn.end_ms - turn.start_ms, max(0, end_ms - turn.end_ms)
        confidence = (turn.confidence * before + span.confidence * after) / max(1, before + after)
        turns[place] = replace(turn, end_ms=max(turn.end_ms, end_ms), confidence=confidence)
    return tuple(turns)
