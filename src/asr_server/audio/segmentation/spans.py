"""Spans of at most 30 s of a long recording, from the speech probability and the loudness of its frames.

First, hysteresis finds the regions of speech, as Silero's own `get_speech_timestamps` does: a region starts where the
probability reaches `threshold`, and ends where it fell below `off_threshold(threshold)` if it does not reach
`threshold` again for `min_silence_ms`. Then the regions get a margin and are packed into spans: regions are added
while they fit into `max_span_s` and follow soon; a region that is itself too long is cut where its last third is
quietest.

Invariants (see `spans_test`): spans are ordered and disjoint; all speech lies in spans; how the frames are divided
into calls does not matter.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.segmentation.config import SegmentationConfig
from asr_server.audio.segmentation.hysteresis import Hysteresis
from asr_server.audio.segmentation.quietest import SMOOTHED_FRAMES, cut_cost, quietest_frame
from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, ms_to_frames, samples_to_s


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a recording, samples [start, end) at 16 kHz."""

    start_samples: int
    end_samples: int
    # the speech in it, [from, to) in samples, ordered, disjoint and without margins
    speech_regions: tuple[tuple[int, int], ...] = ()
    peak_probability: float = 0.0  # the highest speech probability of a frame of the span

    @property
    def duration_s(self) -> float:
        return samples_to_s(self.end_samples - self.start_samples)


def cut(
    probabilities: NDArray[np.float32], power: NDArray[np.float32], total_samples: int, config: SegmentationConfig
) -> list[Span]:
    """Spans of a clip of `total_samples` from its speech probability and mean square power, each (frames,) float32."""
    cutter = SpanCutter(config)
    return [*cutter.push(probabilities, power), *cutter.finish(total_samples)]


class SpanCutter:
    """Cuts a recording that comes bit by bit: `push` returns the spans that are now final, `finish` the rest.

    A span is final once a long silence or more speech than fits has followed it, so at most `max_span_s` later.
    """

    def __init__(self, config: SegmentationConfig) -> None:
        self._speech = _SpeechRegions(config)
        self._pad, self._max_gap = ms_to_frames(config.pad_ms), ms_to_frames(1000 * config.max_gap_s)
        self._max_span = int(1000 * config.max_span_s / FRAME_MS)  # down: a span is at most that long
        self._frame = 0
        self._start: int | None = None  # the open span: its first frame,
        self._end = 0  # and the padded end of its last finished region; equal to _start if there is none yet
        self._floor = 0  # no span may start before this frame: the end of the last
        longest_wait = self._max_gap + self._pad + ms_to_frames(config.min_silence_ms)
        self._recent = _RecentFrames(self._max_span + longest_wait + SMOOTHED_FRAMES)
        self._regions: deque[tuple[int, int]] = deque()  # finished ones that are in no final span yet
        self._final: list[Span] = []

    @property
    def needed_from(self) -> int:
        """Return the sample before which no later span begins: what lies before it may be forgotten."""
        if self._start is not None:
            return self._start * FRAME_SAMPLES
        return max(self._floor, self._speech.onset - self._pad) * FRAME_SAMPLES

    def push(self, probabilities: NDArray[np.float32], power: NDArray[np.float32]) -> list[Span]:
        """The next frames: probabilities in [0, 1] and mean square power, both (k,). Returns the spans now final."""
        for probability, frame_power in zip(probabilities.tolist(), power.tolist(), strict=True):
            self._recent.add(probability, frame_power)
            self._frame += 1
            finished = self._speech.add(probability)
            self._advance(finished)
        return self._take_final()

    def finish(self, total_samples: int) -> list[Span]:
        """End of the audio, which had `total_samples`: the last spans, none past the end. Call nothing after it."""
        finished = self._speech.finish()
        self._advance(finished)
        if self._start is not None:
            self._emit(self._end)
        return [_within(span, total_samples) for span in self._take_final()]

    def _advance(self, finished: tuple[int, int] | None) -> None:
        """Let the open span grow, be cut, or end after a frame."""
        region = finished or self._speech.running()
        if region is None:
            if self._start is not None and self._frame - self._end > self._max_gap + self._pad:
                self._emit(self._end)
            return
        onset = max(self._floor, self._end if self._start is not None else 0, region[0] - self._pad)
        end = region[1] + self._pad
        if self._start is not None and self._end > self._start and self._must_part(onset, end):
            self._emit(self._end)
        if self._start is None:
            self._start = self._end = onset
        while end - self._start > self._max_span:
            cut_at = self._recent.quietest(self._start + 2 * self._max_span // 3, self._start + self._max_span)
            self._emit(cut_at, region)
            self._start = self._end = self._floor
        if finished:
            self._end = end
            self._regions.append(finished)

    def _must_part(self, onset: int, end: int) -> bool:
        """True if a region that reaches from `onset` to `end` so far does not belong to the open span."""
        return onset - self._end > self._max_gap or end - (self._start or 0) > self._max_span

    def _emit(self, end: int, running: tuple[int, int] | None = None) -> None:
        """Close the open span at `end`; `running`: a region that goes on beyond."""
        start = self._start or 0
        found = [*self._regions, *([running] if running else [])]
        inside = tuple(
            (max(first, start) * FRAME_SAMPLES, min(last, end) * FRAME_SAMPLES)
            for first, last in found
            if first < end and last > start
        )
        peak = self._recent.peak(start, end)
        self._final.append(Span(start * FRAME_SAMPLES, end * FRAME_SAMPLES, inside, peak))
        while self._regions and self._regions[0][1] <= end:
            self._regions.popleft()
        self._start, self._floor = None, end

    def _take_final(self) -> list[Span]:
        final, self._final = self._final, []
        return final


class _SpeechRegions:
    """Regions of speech [start, end) in frames, without margins."""

    def __init__(self, config: SegmentationConfig) -> None:
        self._speech = Hysteresis(config.threshold)
        self._min_silence, self._min_speech = ms_to_frames(config.min_silence_ms), ms_to_frames(config.min_speech_ms)
        self._frame = 0

    @property
    def onset(self) -> int:
        """Return the first frame of what goes on, which may still prove a click; in silence the next frame."""
        return self._frame - self._speech.frames

    def add(self, probability: float) -> tuple[int, int] | None:
        """Add the next frame; returns the region that it ends, if any."""
        self._frame += 1
        self._speech.add(probability)
        return self.finish() if self._speech.quiet_frames > self._min_silence else None

    def running(self) -> tuple[int, int] | None:
        """Return the region that goes on, as far as it is certain; None if there is none, or it may still prove a
        click."""
        if not self._speech.frames or self._speech.voiced_frames < self._min_speech:
            return None
        return self.onset, self.onset + self._speech.voiced_frames

    def finish(self) -> tuple[int, int] | None:
        """End the running region here; None if there is none."""
        region = self.running()
        self._speech.reset()
        return region


class _RecentFrames:
    """The speech probability of each recent frame, and how bad a cut there would be."""

    def __init__(self, kept: int) -> None:
        self._costs: deque[float] = deque(maxlen=kept)
        self._probabilities: deque[float] = deque(maxlen=kept)
        self._seen = 0

    def add(self, probability: float, power: float) -> None:
        self._probabilities.append(probability)
        self._costs.append(cut_cost(power, probability))
        self._seen += 1

    def peak(self, low: int, high: int) -> float:
        """Return the highest probability in [low, high), as far as kept."""
        first = self._seen - len(self._probabilities)
        return max(islice(self._probabilities, max(0, low - first), max(0, high - first)), default=0.0)

    def quietest(self, low: int, high: int) -> int:
        """Return the frame in [low, high), as far as kept, where a cut is best."""
        first = self._seen - len(self._costs)
        return first + quietest_frame(self._costs, max(0, low - first), max(0, high - first))


def _within(span: Span, total_samples: int) -> Span:
    """Return the span without what lies past the end: the last frame may be filled up with silence."""
    speech_regions = tuple(
        (first, min(last, total_samples)) for first, last in span.speech_regions if first < total_samples
    )
    return replace(span, end_samples=min(span.end_samples, total_samples), speech_regions=speech_regions)
