"""How long audio is to be cut, in numbers; how it is done is in `spans.py`. Imports nothing: anybody may hold them."""

from __future__ import annotations

from dataclasses import dataclass

from asr_server.core.audio import FRAME_MS


@dataclass(frozen=True, slots=True)
class SegmentationConfig:
    """Thresholds are probabilities. Times are kept to frames of 32 ms, rounded up. `pad_ms` <= `min_silence_ms`."""

    threshold: float = 0.5
    off_threshold: float = 0.35
    min_silence_ms: int = 500  # a shorter pause does not end a region
    min_speech_ms: int = 100  # a shorter region is a click
    pad_ms: int = 300  # margin around a region: onsets and trailing consonants score low
    max_span_s: float = 30.0
    max_gap_s: float = 2.0  # a longer silence is left out, between two spans

    def __post_init__(self) -> None:
        if not 0 <= self.off_threshold <= self.threshold <= 1:
            raise ValueError("off_threshold must lie between 0 and threshold")
        if not 0 <= self.pad_ms <= self.min_silence_ms:
            raise ValueError("pad_ms must lie between 0 and min_silence_ms")
        if self.max_span_s * 1000 < 3 * (2 * self.pad_ms + self.min_silence_ms + self.min_speech_ms + 10 * FRAME_MS):
            raise ValueError("max_span_s is too short for the pads and pauses")
