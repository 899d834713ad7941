"""Finds where speech begins and ends, and where to cut, from the speech probability and the loudness of frames.

`SpeechProbability` runs Silero VAD on onnxruntime, for many streams in one call, and returns the probability of
speech for each frame of 32 ms. The network takes frames of exactly 512 samples at 16 kHz, each preceded by the last 64
samples of the frame before, and keeps an LSTM state between frames. `silero_batch.onnx` (made by
`tools/voice_detector.py`) applies its layers to the frames of many streams at once. It reads its weights from
`silero_vad_16k_sequence.onnx`, a file of the package silero-vad 6.2.3 (MIT; NOTICE has its source and checksum). Its
probabilities match the package's own networks within 2e-5 (263 s of real speech, 2026-11).

`SpanCutter` cuts a recording into spans of at most 30 s.

First, hysteresis finds the regions of speech, as Silero's own `get_speech_timestamps` does: a region starts where the
probability reaches `threshold`, and ends where it falls below `off_threshold(threshold)` if it does not reach
`threshold` again for `min_silence_ms`. Then the regions get a margin and are packed into spans: regions are added
while they fit into `max_span_s` and follow within `max_gap_s`; a region that is itself too long is cut where its last
third is quietest.

Invariants: spans are ordered and disjoint; all speech lies in spans; how the frames are divided into calls does not
matter.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, MAX_GAP_S, PAD_MS, ms_to_frames
from asr_server.core.environment import onnx_session

if TYPE_CHECKING:
    import onnxruntime

MIN_SPEECH_MS = 100  # a shorter sound is a click


def off_threshold(threshold: float) -> float:
    """Return the probability below which speech ends. Silero's own tools use the same distance from `threshold`."""
    return max(0.01, threshold - 0.15)


@dataclass(frozen=True, slots=True)
class SegmentationConfig:
    """The rules for cutting a recording into spans. Times are rounded up to frames of 32 ms.

    Raises `ValueError` for values that contradict each other.
    """

    threshold: float = 0.5  # the least speech probability of a frame with speech
    min_silence_ms: int = 500  # a shorter pause does not end a region of speech
    pad_ms: int = PAD_MS  # margin around a region, at most `min_silence_ms`
    max_span_s: float = 30.0
    max_gap_s: float = MAX_GAP_S

    def __post_init__(self) -> None:
        if not off_threshold(self.threshold) <= self.threshold <= 1:
            raise ValueError("threshold must be a probability of at least 0.01")
        if not 0 <= self.pad_ms <= self.min_silence_ms:
            raise ValueError("pad_ms must lie between 0 and min_silence_ms")
        if self.pad_ms > most_pad_ms(self.max_span_s, self.min_silence_ms):
            raise ValueError("max_span_s is too short for the pads and pauses")


def most_pad_ms(max_span_s: float, min_silence_ms: int) -> int:
    """Return the largest margin with which three regions and their pauses fit into a span."""
    return int(1000 * max_span_s / 3 - min_silence_ms - MIN_SPEECH_MS - 10 * FRAME_MS) // 2


class Hysteresis:
    """Counts the frames of speech and of the pause at its end. The caller decides whether a pause ends the speech.

    A pause begins with a frame below `off_threshold(threshold)` and ends with a frame at or above `threshold`.
    """

    def __init__(self, threshold: float) -> None:
        self._on, self._off = threshold, off_threshold(threshold)
        self.frames = 0  # since speech began, the pause included; 0: no speech
        self.quiet_frames = 0  # the pause at the end, of these frames

    @property
    def voiced_frames(self) -> int:
        return self.frames - self.quiet_frames

    def add(self, probability: float) -> None:
        """Add the next frame."""
        voiced = probability >= self._on
        if not self.frames and not voiced:
            return
        self.frames += 1
        if voiced:
            self.quiet_frames = 0
        elif self.quiet_frames or probability < self._off:
            self.quiet_frames += 1

    def reset(self, frames: int = 0) -> None:
        self.frames, self.quiet_frames = frames, 0


SMOOTHED_FRAMES = 5  # 160 ms: shorter dips of loudness are the closures of plosives, not gaps between words
_PROBABILITY_DB = 20.0  # how much a speech probability of 1 adds to the loudness; chosen, not measured


def frame_power(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean square of each frame, (n,) float32 -> (ceil(n / 512),) float32; the last frame is filled up with silence."""
    frames = np.pad(audio, (0, -len(audio) % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
    power: NDArray[np.float32] = np.einsum("fs,fs->f", frames, frames) / np.float32(FRAME_SAMPLES)
    return power


def cut_cost(power: float, probability: float) -> float:
    """Return the cost of a cut in a frame, in dB: its loudness, and more the likelier it holds speech."""
    return 10.0 * math.log10(power + 1e-10) + _PROBABILITY_DB * probability


def quietest_frame(costs: Sequence[float], low: int, high: int) -> int:
    """Return the first frame in [low, high) with the lowest mean cost over the 160 ms around it. 0 <= low <
    len(costs)."""
    padded = np.pad(np.array(costs), SMOOTHED_FRAMES // 2, mode="edge")
    smooth = np.convolve(padded, np.ones(SMOOTHED_FRAMES) / SMOOTHED_FRAMES, "valid")
    return low + int(smooth[low:high].argmin())


def quietest_middle(audio: NDArray[np.float32]) -> int:
    """Return the sample at which audio, float32 (n,) at 16 kHz, is cut in two: where its middle third is quietest."""
    third = len(audio) // 3
    return third + int(frame_power(audio[third:-third]).argmin()) * FRAME_SAMPLES


@dataclass(frozen=True, slots=True)
class SpeechSpan:
    """Samples [start, end) of a recording at 16 kHz, and what is known of them.

    A span that passes full scale is scaled down by its peak, as the SDK does with whole clips.
    """

    start: int
    end: int
    # float32 (end - start,) in [-1, 1]; empty until it is cut out of the recording
    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32), compare=False)
    peak_probability: float = 0.0  # the highest speech probability of a frame (0..1)
    # where the voice detector found speech, [from, to) in samples, ordered, disjoint and without margins
    speech_regions: tuple[tuple[int, int], ...] = ()
    speaker: str | None = None  # who speaks in this channel, if that is known
    is_doubtful: bool = False  # it is loud, but the detector found no speech in it
    has_speech: bool = True  # the detector found speech in a part of it

    def part(self, start: int, end: int) -> SpeechSpan:
        """Return the part of this span with the samples [start, end) of the recording. It keeps the span's peak."""
        audio = self.audio[start - self.start : end - self.start]
        speech_regions = tuple((max(a, start), min(b, end)) for a, b in self.speech_regions if a < end and b > start)
        return replace(self, start=start, end=end, audio=audio, speech_regions=speech_regions)


class SpanCutter:
    """Cuts a recording that arrives bit by bit: `push` returns the spans that are now final, `finish` the rest.

    A span is final once a long silence or more speech than fits has followed it, so at most `max_span_s` later.
    """

    def __init__(self, config: SegmentationConfig) -> None:
        self._speech = _SpeechRegions(config)
        self._pad, self._max_gap = ms_to_frames(config.pad_ms), ms_to_frames(1000 * config.max_gap_s)
        self._max_span = int(1000 * config.max_span_s / FRAME_MS)  # rounded down: no span is longer
        self._frame = 0
        self._start: int | None = None  # the open span: its first frame,
        self._end = 0  # and the padded end of its last finished region; equal to _start if there is none yet
        self._floor = 0  # no span may start before this frame: the end of the last span
        longest_wait = self._max_gap + self._pad + ms_to_frames(config.min_silence_ms)
        self._recent = _RecentFrames(self._max_span + longest_wait + SMOOTHED_FRAMES)
        self._regions: deque[tuple[int, int]] = deque()  # finished regions that are in no final span yet
        self._final: list[SpeechSpan] = []

    @property
    def needed_from(self) -> int:
        """Return the sample before which no later span begins: earlier samples may be forgotten."""
        if self._start is not None:
            return self._start * FRAME_SAMPLES
        return max(self._floor, self._speech.onset - self._pad) * FRAME_SAMPLES

    def push(self, probabilities: NDArray[np.float32], power: NDArray[np.float32]) -> list[SpeechSpan]:
        """Add frames: probabilities in [0, 1] and mean square power, both (k,). Return the spans that are now final."""
        for probability, loudness in zip(probabilities.tolist(), power.tolist(), strict=True):
            self._recent.add(probability, loudness)
            self._frame += 1
            finished = self._speech.add(probability)
            self._advance(finished)
        return self._take_final()

    def finish(self, total_samples: int) -> list[SpeechSpan]:
        """End the audio, which had `total_samples`. Return the last spans, none past the end. Call nothing after it."""
        finished = self._speech.finish()
        self._advance(finished)
        if self._start is not None:
            self._emit(self._end)
        # The last frame may be filled up with silence.
        return [span.part(span.start, min(span.end, total_samples)) for span in self._take_final()]

    def _advance(self, finished: tuple[int, int] | None) -> None:
        """After a frame, let the open span grow, cut it, or end it."""
        region = finished or self._speech.running()
        if region is None:
            if self._start is not None and self._frame - self._end > self._max_gap + self._pad:
                self._emit(self._end)
            return
        onset = max(self._floor, self._end if self._start is not None else 0, region[0] - self._pad)
        end = region[1] + self._pad
        if self._start is not None and self._end > self._start:
            is_apart = onset - self._end > self._max_gap or end - self._start > self._max_span
            if is_apart:
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

    def _emit(self, end: int, running: tuple[int, int] | None = None) -> None:
        """Close the open span at `end`; `running`: a region that continues beyond."""
        start = self._start or 0
        found = [*self._regions, *([running] if running else [])]
        inside = tuple(
            (max(first, start) * FRAME_SAMPLES, min(last, end) * FRAME_SAMPLES)
            for first, last in found
            if first < end and last > start
        )
        peak = self._recent.peak(start, end)
        self._final.append(
            SpeechSpan(start * FRAME_SAMPLES, end * FRAME_SAMPLES, peak_probability=peak, speech_regions=inside)
        )
        while self._regions and self._regions[0][1] <= end:
            self._regions.popleft()
        self._start, self._floor = None, end

    def _take_final(self) -> list[SpeechSpan]:
        final, self._final = self._final, []
        return final


class _SpeechRegions:
    """Regions of speech [start, end) in frames, without margins."""

    def __init__(self, config: SegmentationConfig) -> None:
        self._speech = Hysteresis(config.threshold)
        self._min_silence, self._min_speech = ms_to_frames(config.min_silence_ms), ms_to_frames(MIN_SPEECH_MS)
        self._frame = 0

    @property
    def onset(self) -> int:
        """Return the first frame of the current region, which may still prove a click; in silence, the next frame."""
        return self._frame - self._speech.frames

    def add(self, probability: float) -> tuple[int, int] | None:
        """Add the next frame; returns the region that it ends, if any."""
        self._frame += 1
        self._speech.add(probability)
        return self.finish() if self._speech.quiet_frames > self._min_silence else None

    def running(self) -> tuple[int, int] | None:
        """Return the current region as far as it is certain, or None if there is none or it may still prove to be a
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
    """The speech probability of each recent frame, and the cost of a cut there."""

    def __init__(self, kept: int) -> None:
        self._costs: deque[float] = deque(maxlen=kept)
        self._probabilities: deque[float] = deque(maxlen=kept)
        self._seen = 0

    def add(self, probability: float, power: float) -> None:
        self._probabilities.append(probability)
        self._costs.append(cut_cost(power, probability))
        self._seen += 1

    def peak(self, low: int, high: int) -> float:
        """Return the highest probability of the kept frames in [low, high)."""
        first = self._seen - len(self._probabilities)
        return max(islice(self._probabilities, max(0, low - first), max(0, high - first)), default=0.0)

    def quietest(self, low: int, high: int) -> int:
        """Return the kept frame in [low, high) where a cut is best."""
        first = self._seen - len(self._costs)
        return first + quietest_frame(self._costs, max(0, low - first), max(0, high - first))


Samples = NDArray[np.float32]
Probabilities = NDArray[np.float32]

# onnxruntime refuses weights if their path is a symbolic link that leaves the folder of the graph.
GRAPH = Path(__file__).resolve().with_name("silero_batch.onnx")
WEIGHTS = GRAPH.with_name("silero_vad_16k_sequence.onnx")
MOST_FRAMES = 128  # in one call, about 3 ms; larger calls are no faster, and live speech would wait longer for them
_STATE_SIZE = 2 * 128 + 64  # hidden and cell of the LSTM, and the end of the frame before
_USUAL_PEAK = 0.5
_MOST_GAIN = 8.0
_PEAK_FADE = 0.5 ** (FRAME_MS / 2000)  # by half in 2 s: another speaker may be quieter


class SpeechProbability:
    """Silero VAD, frame by frame, with the state of one stream. Use one object for each stream.

    The network is loaded once a process, at the first use. It is shared; the stream state is not.

    Quiet audio is amplified first: the network detects speech 24 dB below the usual level late or not at all.
    """

    def __init__(self) -> None:
        self.state = np.zeros(_STATE_SIZE, np.float32)
        self.peak = _USUAL_PEAK / _MOST_GAIN

    def push(self, audio: Samples) -> Probabilities:
        """Add samples, (n,) float32. Return (ceil(n / 512),) float32 in [0, 1]. Silence completes the last frame."""
        whole = np.pad(audio, (0, -len(audio) % FRAME_SAMPLES)).reshape(-1, FRAME_SAMPLES)
        parts = [whole[at : at + MOST_FRAMES] for at in range(0, len(whole), MOST_FRAMES)]
        return np.concatenate([np.zeros(0, np.float32), *(self.push_together([(self, part)])[0] for part in parts)])

    @staticmethod
    def push_together(pieces: Sequence[tuple[SpeechProbability, Samples]]) -> list[Probabilities]:
        """Return the probabilities of the next frames of several streams, in one call. Each stream has (n, 512)
        frames, n >= 1.

        If this raises, no stream has changed.
        """
        streams = [stream for stream, _ in pieces]
        counts = np.array([len(frames) for _, frames in pieces])
        frames = np.concatenate([frames for _, frames in pieces])
        ends, numbers = np.cumsum(counts), np.arange(len(frames))
        gains, peaks = _gains([stream.peak for stream in streams], counts.tolist(), np.abs(frames).max(axis=1))
        rows = np.repeat(np.arange(len(streams)), counts)  # of each frame: its stream
        steps = numbers - (ends - counts)[rows]  # of each frame: its place in the piece
        before = len(streams) + numbers - 1
        before[ends - counts] = np.arange(len(streams))
        table = np.zeros((counts.max(), len(streams)), np.int64)
        table[steps, rows] = numbers
        inputs = {
            "frames": frames,
            "gains": gains,
            "before": before,
            "last": len(streams) + ends - 1,
            "table": table,
            "counts": counts.astype(np.int32),
            "states": np.stack([stream.state for stream in streams]),
        }
        scores, states = load_voice_detector().run(["probabilities", "next_states"], inputs)
        for stream, state, peak in zip(streams, states, peaks, strict=True):
            stream.state, stream.peak = state.copy(), peak  # a view would keep the states of all streams in memory
        return np.split(scores[steps, 0, rows, 0], ends[:-1])


def _gains(peaks: list[float], counts: list[int], loudest: Samples) -> tuple[Samples, list[float]]:
    """Return the gain of each frame, (k, 1), which raises the recent peak of its stream to the usual peak, and the
    peaks after the frames. Peaks fade slowly. `loudest`: the loudest sample of each frame, stream by stream."""
    gains, after, levels = [], [], iter(loudest.tolist())
    for peak, count in zip(peaks, counts, strict=True):
        for level in islice(levels, count):
            peak = max(level, peak * _PEAK_FADE, _USUAL_PEAK / _MOST_GAIN)
            gains.append(max(1.0, _USUAL_PEAK / peak))
        after.append(peak)
    return np.array(gains, np.float32)[:, None], after


@functools.cache
def load_voice_detector() -> onnxruntime.InferenceSession:
    """Load the network once a process. Several threads may call its `run` at once."""
    return onnx_session(GRAPH)  # a call takes 3 ms: more threads would cost more
