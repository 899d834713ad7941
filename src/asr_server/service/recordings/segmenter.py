"""Where the speech is, found while a recording is decoded: the voice detector in front of the pure span cutter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from asr_server.audio.segmentation_config import SegmentationConfig
from asr_server.audio.spans import Span, SpanCutter
from asr_server.audio.vad import SpeechProbability, frame_power
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIN_SPLIT_SAMPLES = 2 * SAMPLE_RATE


@dataclass(frozen=True, slots=True, eq=False)
class SpeechSpan:
    """Samples [start, end) of a recording at 16 kHz, and what they are.

    `audio`: float32 (end - start,) in [-1, 1]; a span that passes full scale is scaled down by its peak, as the SDK
    does with whole clips. `speech_regions`: where the voice detector found speech, [from, to) in samples.
    `peak_probability`: the highest speech probability of a frame (0..1).
    """

    start: int
    end: int
    audio: NDArray[np.float32]
    peak_probability: float
    speech_regions: tuple[tuple[int, int], ...] = ()

    def part(self, start: int, end: int) -> SpeechSpan:
        """The samples [start, end) of the recording, which lie in the span; the peak stays that of the whole."""
        audio = self.audio[start - self.start : end - self.start]
        speech_regions = tuple((max(a, start), min(b, end)) for a, b in self.speech_regions if a < end and b > start)
        return replace(self, start=start, end=end, audio=audio, speech_regions=speech_regions)

    @property
    def divisible(self) -> bool:
        """Whether halves are worth trying: in a shorter span a word would be lost at the joint sooner than a loop is
        mended."""
        return len(self.audio) >= _MIN_SPLIT_SAMPLES

    def halves(self) -> tuple[SpeechSpan, SpeechSpan]:
        """The span as two, parted where its middle third is quietest."""
        third = len(self.audio) // 3
        power = frame_power(self.audio[third:-third])
        cut_at = self.start + third + int(power.argmin()) * FRAME_SAMPLES
        return self.part(self.start, cut_at), self.part(cut_at, self.end)


class Segmenter:
    """Cuts one recording, fed block by block; keeps the audio of the open span and no more."""

    def __init__(self, rules: SegmentationConfig) -> None:
        self._voice = SpeechProbability()
        self._cutter = SpanCutter(rules)
        self._rest = np.zeros(0, np.float32)  # less than a frame
        self._kept = np.zeros(0, np.float32)  # what a span may still need, from sample `_kept_from` on
        self._kept_from = 0
        self._peak = np.float32(1.0)

    def push(self, block: NDArray[np.float32]) -> list[SpeechSpan]:
        """The next samples, float32 (n,) at 16 kHz, finite. Returns the spans that are now final, at most 30 s each."""
        whole = np.concatenate((self._rest, block))
        frames, self._rest = np.split(whole, [len(whole) - len(whole) % FRAME_SAMPLES])
        self._keep(frames)
        return self._taken(self._cutter.push(*self._scores(frames)))

    def finish(self) -> list[SpeechSpan]:
        """The end of the recording: the last spans."""
        total = self._kept_from + len(self._kept) + len(self._rest)
        last = np.pad(self._rest, (0, -len(self._rest) % FRAME_SAMPLES))
        self._keep(self._rest)
        ready = self._cutter.push(*self._scores(last))
        return self._taken([*ready, *self._cutter.finish(total)])

    def _scores(self, frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # Files of floats may be loud beyond full scale by any factor; what was heard so far tells which.
        self._peak = max(self._peak, np.abs(frames).max(initial=1.0))
        heard = np.clip(frames / self._peak, -1.0, 1.0)
        return self._voice.push(heard), frame_power(heard)

    def _keep(self, frames: NDArray[np.float32]) -> None:
        needed = min(self._cutter.needed_from - self._kept_from, len(self._kept))
        self._kept = np.concatenate((self._kept[needed:], frames))
        self._kept_from += needed

    def _taken(self, spans: list[Span]) -> list[SpeechSpan]:
        return [
            SpeechSpan(
                span.start_samples, span.end_samples, self._audio(span), span.peak_probability, span.speech_regions
            )
            for span in spans
        ]

    def _audio(self, span: Span) -> NDArray[np.float32]:
        audio = self._kept[span.start_samples - self._kept_from : span.end_samples - self._kept_from]
        peak = float(np.abs(audio).max(initial=0.0))
        # A copy in any case: a view would keep all that was decoded beside it. The division may round to above one.
        return np.clip(audio / np.float32(peak), -1.0, 1.0) if peak > 1.0 else audio.copy()
