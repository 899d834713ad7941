"""Finds the outcome of each part of a recording: words, silence, sound without words, or unheard."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import FRAME_MS
from asr_server.core.transcript import CoverageKind, CoveragePart, Segment, UnheardReason

_CELL_FRAMES = 32  # about 1 s: a pause is judged second by second, each by most of its frames
# What is louder than the quietest tenth of the speech is not quiet. A fixed level would take the noise of one room for
# speech, and the speech of another for noise.
_QUIETEST_PERCENT = 10
_SPEECH = 0.5  # the least probability of a frame of speech for that
_QUIET_DB = -50.0  # dBFS: the level where nobody speaks
_LEAST_UNHEARD_MS = 500  # a shorter pause has hardly room for a word
_FLOOR_DB = -100.0


class SoundLevels:
    """The loudness and the speech probability of each frame of a recording, in a byte each: 225 kB an hour."""

    def __init__(self) -> None:
        self._loudness = bytearray()  # dB over `_FLOOR_DB`
        self._probabilities = bytearray()  # in parts of 255

    def put(self, first: int, probabilities: NDArray[np.float32], power: NDArray[np.float32]) -> None:
        """Note the frames from number `first` on: probabilities in [0, 1] and mean square power, both (k,).

        Of a frame that is noted again, as that of another channel, the louder and the likelier count.
        """
        loudness = 10.0 * np.log10(power + 1e-10) - _FLOOR_DB
        for kept, values in ((self._loudness, loudness), (self._probabilities, 255.0 * probabilities)):
            end = first + len(values)
            kept.extend(bytes(max(0, end - len(kept))))
            known = np.frombuffer(kept, np.uint8)[first:end]
            np.maximum(known, np.rint(values).clip(0, 255).astype(np.uint8), out=known)

    def coverage(self, duration_ms: int, segments: Sequence[Segment]) -> tuple[CoveragePart, ...]:
        """Return the parts of a recording of that length, in order and without gaps, neighbours of one kind joined.

        `segments`: the answers for all that the model was given, also without text. Where they overlap, as those of
        several channels do, what is unheard counts most, and words count more than none.
        """
        sound = _Sound(
            np.frombuffer(bytes(self._loudness), np.uint8), np.frombuffer(bytes(self._probabilities), np.uint8)
        )
        parts: list[CoveragePart] = []
        for start_ms, end_ms, segment in _stretches(duration_ms, segments):
            for part in [sound.heard(segment, start_ms, end_ms)] if segment else sound.left_out(start_ms, end_ms):
                if parts and (parts[-1].kind, parts[-1].reason) == (part.kind, part.reason):
                    parts[-1] = replace(parts[-1], end_ms=part.end_ms)
                else:
                    parts.append(part)
        return tuple(map(sound.rated, parts))


def _stretches(duration_ms: int, segments: Sequence[Segment]) -> Iterator[tuple[int, int, Segment | None]]:
    """Yield the recording in stretches, each with the segment that counts most there, None if there is none."""
    edges = sorted({0, duration_ms, *(edge for segment in segments for edge in (segment.start_ms, segment.end_ms))})
    owners: list[Segment | None] = [None] * (len(edges) - 1)
    for segment in sorted(segments, key=lambda one: (not one.complete, bool(one.text))):
        first, last = bisect_left(edges, segment.start_ms), bisect_left(edges, segment.end_ms)
        owners[first:last] = [segment] * (last - first)  # in place of those that count less
    for (start_ms, end_ms), owner in zip(pairwise(edges), owners, strict=True):
        yield start_ms, end_ms, owner


class _Sound:
    """The loudness and the probability of speech of a whole recording."""

    def __init__(self, loudness: NDArray[np.uint8], probabilities: NDArray[np.uint8]) -> None:
        speech = loudness[probabilities >= 255 * _SPEECH]
        quiet = np.percentile(speech, _QUIETEST_PERCENT) if len(speech) else _QUIET_DB - _FLOOR_DB
        # For each number of frames from the start: how many of them are loud, and the sum of their probabilities.
        self._loud = np.concatenate(([0], np.cumsum(loudness > quiet)))
        self._speech = np.concatenate(([0], np.cumsum(probabilities, dtype=np.int64)))

    def heard(self, segment: Segment, start_ms: int, end_ms: int) -> CoveragePart:
        """Return what became of a stretch that the model was given."""
        if segment.cut_short:
            return CoveragePart(start_ms, end_ms, CoverageKind.UNHEARD, segment.cut_short)
        if segment.text:
            return CoveragePart(start_ms, end_ms, CoverageKind.WORDS)
        is_loud = self._is_loud(*_frames(start_ms, end_ms))
        return CoveragePart(start_ms, end_ms, CoverageKind.SOUND if is_loud else CoverageKind.SILENCE)

    def left_out(self, start_ms: int, end_ms: int) -> Iterator[CoveragePart]:
        """Yield what became of the seconds of a stretch that the model was not given."""
        first, last = _frames(start_ms, end_ms)
        count = max(1, round((last - first) / _CELL_FRAMES))
        is_short = end_ms - start_ms < _LEAST_UNHEARD_MS
        for begin, end in pairwise(first + (last - first) * number // count for number in range(count + 1)):
            cell = max(start_ms, int(begin * FRAME_MS)), min(end_ms, int(end * FRAME_MS))
            if not self._is_loud(begin, end):
                yield CoveragePart(*cell, CoverageKind.SILENCE)
            elif is_short:
                yield CoveragePart(*cell, CoverageKind.SOUND)
            else:
                yield CoveragePart(*cell, CoverageKind.UNHEARD, UnheardReason.DETECTOR)

    def rated(self, part: CoveragePart) -> CoveragePart:
        """Return the part, with its confidence if it is silence."""
        if part.kind is not CoverageKind.SILENCE:
            return part
        first, last = _frames(part.start_ms, part.end_ms)
        speech = int(self._speech[last] - self._speech[first]) / (255 * (last - first))
        return replace(part, confidence=round(1.0 - speech, 3))

    def _is_loud(self, first: int, last: int) -> bool:
        return 2 * int(self._loud[last] - self._loud[first]) > last - first


def _frames(start_ms: int, end_ms: int) -> tuple[int, int]:
    """Return the number of the first frame of a stretch, and of the first after it."""
    return int(start_ms // FRAME_MS), int(-(-end_ms // FRAME_MS))
