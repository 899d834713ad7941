"""The settings of segmentation. Imports no numpy, so that request types can hold them."""

from __future__ import annotations

from dataclasses import dataclass

from asr_server.core.audio import FRAME_MS

MIN_SPEECH_MS = 100  # a shorter sound is a click


def off_threshold(threshold: float) -> float:
    """Return the probability below which speech ends that began at `threshold`: the distance that Silero's own tools
    use."""
    return max(0.01, threshold - 0.15)


@dataclass(frozen=True, slots=True)
class SegmentationConfig:
    """The rules for cutting a recording into spans. Times are rounded up to frames of 32 ms.

    Raises `ValueError` for values that contradict each other.
    """

    threshold: float = 0.5  # the least speech probability of a frame with speech
    min_silence_ms: int = 500  # a shorter pause does not end a region of speech
    min_speech_ms: int = MIN_SPEECH_MS
    pad_ms: int = 300  # margin around a region: onsets and trailing consonants score low; at most `min_silence_ms`
    max_span_s: float = 30.0
    max_gap_s: float = 2.0  # a longer silence is left out, between two spans

    def __post_init__(self) -> None:
        if not off_threshold(self.threshold) <= self.threshold <= 1:
            raise ValueError("threshold must be a probability of at least 0.01")
        if not 0 <= self.pad_ms <= self.min_silence_ms:
            raise ValueError("pad_ms must lie between 0 and min_silence_ms")
        if self.max_span_s * 1000 < 3 * (2 * self.pad_ms + self.min_silence_ms + self.min_speech_ms + 10 * FRAME_MS):
            raise ValueError("max_span_s is too short for the pads and pauses")
