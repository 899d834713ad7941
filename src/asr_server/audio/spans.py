"""Where to cut long audio: speech probabilities in, spans of at most 30 s out; pure, and ignorant of what is said.

Stage one finds speech regions by hysteresis, as Silero's own `get_speech_timestamps` does: it starts where the
probability reaches `threshold`, and ends where it fell below `off_threshold` if it does not reach `threshold` again
for `min_silence_ms`. Stage two gives the regions a margin and packs them into spans. A span never exceeds `max_span_s`:
regions are added while they fit and follow soon; a region that is itself too long is cut where its last third is
quietest.

Laws (see `spans_test`): spans are ordered and disjoint; every region of speech lies in spans, each sample in one;
how the frames are fed in does not matter.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.segmentation_config import SegmentationConfig
from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, samples_to_s

_SMOOTHED_FRAMES = 5  # 160 ms: shorter dips of loudness are the closures of plosives, not gaps between words
_PROBABILITY_DB = 20.0  # what a probability of one weighs against loudness when a cut is sought; chosen, not measured


@dataclass(frozen=True, slots=True)
class Span:
    """Samples [start, end) at 16 kHz, the speech_regions of speech [from, to) among them, and how sure these are.

    `speech_regions` are ordered, disjoint and without margins. `peak_probability`: the highest of a frame of the span.
    """

    start_samples: int
    end_samples: int
    speech_regions: tuple[tuple[int, int], ...] = ()
    peak_probability: float = 0.0

    @property
    def start_s(self) -> float:
        return samples_to_s(self.start_samples)

    @property
    def duration_s(self) -> float:
        return samples_to_s(self.end_samples - self.start_samples)


def cut(
    probabilities: NDArray[np.float32], power: NDArray[np.float32], total_samples: int, rules: SegmentationConfig
) -> list[Span]:
    """Spans of a clip of `total_samples` from its speech probability and mean square power, each (frames,) float32."""
    cutter = SpanCutter(rules)
    return [*cutter.push(probabilities, power), *cutter.finish(total_samples)]


class SpanCutter:
    """The same, fed bit by bit: `push` returns the spans that are now final, `finish` the rest.

    A span is final once a long silence or more speech than fits has followed it, so at most `max_span_s` later.
    """

    def __init__(self, rules: SegmentationConfig) -> None:
        self._speech = _Hysteresis(rules)
        self._pad, self._max_gap = _frames(rules.pad_ms), _frames(1000 * rules.max_gap_s)
        self._max_span = int(1000 * rules.max_span_s / FRAME_MS)  # down: a span is at most that long
        self._frame = 0
        self._start: int | None = None  # the open span: its first frame,
        self._end = 0  # and the padded end of its last finished region; equal to _start if there is none yet
        self._floor = 0  # no span may start before this frame: the end of the last
        longest_wait = self._max_gap + self._pad + _frames(rules.min_silence_ms)
        self._recent = _Recent(self._max_span + longest_wait + _SMOOTHED_FRAMES)
        self._stretches: deque[tuple[int, int]] = deque()  # finished ones that are in no final span yet
        self._final: list[Span] = []

    @property
    def needed_from(self) -> int:
        """The sample before which no later span begins: what lies before it may be forgotten."""
        if self._start is not None:
            return self._start * FRAME_SAMPLES
        onset = self._frame if self._speech.start is None else self._speech.start
        return max(self._floor, onset - self._pad) * FRAME_SAMPLES

    def push(self, probabilities: NDArray[np.float32], power: NDArray[np.float32]) -> list[Span]:
        """The next frames: probabilities in [0, 1] and mean square power, both (k,). Returns the spans now final."""
        for probability, frame_power in zip(probabilities.tolist(), power.tolist(), strict=True):
            self._recent.add(probability, frame_power)
            self._frame += 1
            closed = self._speech.add(probability)
            self._advance(closed)
        return self._taken()

    def finish(self, total_samples: int) -> list[Span]:
        """End of the audio, which had `total_samples`: the last spans, none past the end. Uses the cutter up."""
        closed = self._speech.finish()
        self._advance(closed)
        if self._start is not None:
            self._emit(self._end)
        return [_within(span, total_samples) for span in self._taken()]

    def _advance(self, closed: tuple[int, int] | None) -> None:
        """After one frame: let the open span grow, be cut, or end."""
        running = closed or self._speech.running()
        if running is None:
            if self._start is not None and self._frame - self._end > self._max_gap + self._pad:
                self._emit(self._end)
            return
        onset = max(self._floor, self._end if self._start is not None else 0, running[0] - self._pad)
        end = running[1] + self._pad
        if self._start is not None and self._end > self._start and self._must_part(onset, end):
            self._emit(self._end)
        if self._start is None:
            self._start = self._end = onset
        while end - self._start > self._max_span:
            cut_at = self._recent.quietest(self._start + 2 * self._max_span // 3, self._start + self._max_span)
            self._emit(cut_at, running)
            self._start = self._end = self._floor
        if closed:
            self._end = end
            self._stretches.append(closed)

    def _must_part(self, onset: int, end: int) -> bool:
        """Whether a region that reaches from `onset` to `end` so far does not belong to the open span."""
        return onset - self._end > self._max_gap or end - (self._start or 0) > self._max_span

    def _emit(self, end: int, running: tuple[int, int] | None = None) -> None:
        """Close the open span at `end`; `running`: a region that goes on beyond."""
        start = self._start or 0
        found = [*self._stretches, *([running] if running else [])]
        inside = tuple(
            (max(first, start) * FRAME_SAMPLES, min(last, end) * FRAME_SAMPLES)
            for first, last in found
            if first < end and last > start
        )
        peak = self._recent.peak(start, end)
        self._final.append(Span(start * FRAME_SAMPLES, end * FRAME_SAMPLES, inside, peak))
        while self._stretches and self._stretches[0][1] <= end:
            self._stretches.popleft()
        self._start, self._floor = None, end

    def _taken(self) -> list[Span]:
        final, self._final = self._final, []
        return final


class _Hysteresis:
    """Frames of probability to speech_regions of speech [start, end), in frames, without margins."""

    def __init__(self, rules: SegmentationConfig) -> None:
        self._on, self._off = rules.threshold, rules.off_threshold
        self._min_silence, self._min_speech = _frames(rules.min_silence_ms), _frames(rules.min_speech_ms)
        self._frame = 0
        self.start: int | None = None  # of the region that goes on, which may still prove a click
        self._quiet_since: int | None = None

    def add(self, probability: float) -> tuple[int, int] | None:
        """The next frame; returns the region that it ends, if any."""
        here = self._frame
        self._frame += 1
        if probability >= self._on:
            self.start = here if self.start is None else self.start
            self._quiet_since = None
        elif probability < self._off and self._quiet_since is None:
            self._quiet_since = here
        if self.start is not None and self._quiet_since is not None and here - self._quiet_since >= self._min_silence:
            return self.finish()
        return None

    def running(self) -> tuple[int, int] | None:
        """The region that goes on, as far as it is certain; None if there is none, or it may still prove a click."""
        if self.start is None:
            return None
        end = self._frame if self._quiet_since is None else self._quiet_since
        return (self.start, end) if end - self.start >= self._min_speech else None

    def finish(self) -> tuple[int, int] | None:
        """End the running region here; None if there is none."""
        region = self.running()
        self.start = self._quiet_since = None
        return region


class _Recent:
    """Of each recent frame its speech probability, and how bad a cut there would be: that and its loudness in dB."""

    def __init__(self, kept: int) -> None:
        self._costs: deque[float] = deque(maxlen=kept)
        self._probabilities: deque[float] = deque(maxlen=kept)
        self._seen = 0

    def peak(self, low: int, high: int) -> float:
        """The highest probability in [low, high), as far as kept."""
        first = self._seen - len(self._probabilities)
        return max(islice(self._probabilities, max(0, low - first), max(0, high - first)), default=0.0)

    def add(self, probability: float, power: float) -> None:
        self._probabilities.append(probability)
        self._costs.append(10.0 * math.log10(power + 1e-10) + _PROBABILITY_DB * probability)
        self._seen += 1

    def quietest(self, low: int, high: int) -> int:
        """The frame in [low, high), as far as seen, whose surroundings of 160 ms cost least."""
        first = self._seen - len(self._costs)
        costs = np.array(self._costs)
        kernel = np.ones(_SMOOTHED_FRAMES) / _SMOOTHED_FRAMES
        smooth = np.convolve(np.pad(costs, _SMOOTHED_FRAMES // 2, mode="edge"), kernel, "valid")
        window = smooth[max(0, low - first) : max(0, high - first)]
        return max(low, first) + int(window.argmin())


def _within(span: Span, total_samples: int) -> Span:
    """The span without what lies past the end: the last frame may be filled up with silence."""
    speech_regions = tuple(
        (first, min(last, total_samples)) for first, last in span.speech_regions if first < total_samples
    )
    return replace(span, end_samples=min(span.end_samples, total_samples), speech_regions=speech_regions)


def _frames(duration_ms: float) -> int:
    return math.ceil(duration_ms / FRAME_MS)
