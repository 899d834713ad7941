"""Where the speech is, found off the event loop: the voice detector in front of the pure span cutter."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asr_server.audio.spans import SpanRules, cut
from asr_server.audio.vad import FRAME_SAMPLES, SpeechProbability, frame_power

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SpeechSpan:
    """Samples [start, end) at 16 kHz, and the highest speech probability of a frame (0..1) among them."""

    start: int
    end: int
    peak_probability: float


class Segmenter:
    """Cuts recordings of many callers at once; each gets a voice detector of its own."""

    def __init__(self, rules: SpanRules | None = None) -> None:
        self._rules = rules or SpanRules()

    async def spans(self, audio: NDArray[np.float32]) -> list[SpeechSpan]:
        """The speech of float32 (n,) at 16 kHz as ordered, disjoint spans of at most 30 s; none for silence."""
        return await asyncio.to_thread(self._cut, audio)

    def halves(self, audio: NDArray[np.float32], span: SpeechSpan) -> list[SpeechSpan]:
        """A span as two, parted where its middle third is quietest. Both keep its peak probability."""
        third = (span.end - span.start) // 3
        power = frame_power(audio[span.start + third : span.end - third])
        cut_at = span.start + third + int(power.argmin()) * FRAME_SAMPLES
        return [replace(span, end=cut_at), replace(span, start=cut_at)]

    def _cut(self, audio: NDArray[np.float32]) -> list[SpeechSpan]:
        probabilities = SpeechProbability().probabilities(audio)
        found = cut(probabilities, frame_power(audio), len(audio), self._rules)
        return [
            SpeechSpan(s.start_samples, s.end_samples, _peak(probabilities, s.start_samples, s.end_samples))
            for s in found
        ]


def _peak(probabilities: NDArray[np.float32], start: int, end: int) -> float:
    return float(probabilities[start // FRAME_SAMPLES : -(-end // FRAME_SAMPLES)].max())
