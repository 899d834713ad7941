"""Finds the spans of speech while a recording is decoded: voice detection, then the cutting of `audio/spans.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from asr_server.audio.segmentation import AudioSpan, SegmentationConfig, SpanCutter, frame_power
from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, SAMPLE_RATE, samples_to_ms
from asr_server.core.transcript import CoverageKind
from asr_server.recordings.requests import VoiceDetection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from numpy.typing import NDArray

    from asr_server.audio.decode import Decoder, Progress, Samples, Source
    from asr_server.engine.protocol import EngineTraits
    from asr_server.recordings.coverage import SoundLevels
    from asr_server.recordings.requests import ChunkingStrategy


@dataclass(frozen=True, slots=True, eq=False)
class SpeechSpan:
    """Samples [start, end) of a recording at 16 kHz, and what they are.

    A span that passes full scale is scaled down by its peak, as the SDK does with whole clips.
    """

    start: int
    end: int
    audio: NDArray[np.float32]  # float32 (end - start,) in [-1, 1]
    peak_probability: float  # the highest speech probability of a frame (0..1)
    speech_regions: tuple[tuple[int, int], ...] = ()  # where the voice detector found speech, [from, to) in samples
    speaker: str | None = None  # whose it is, if the channel tells
    is_doubtful: bool = False  # it is loud, and the detector takes it for no speech
    has_speech: bool = True  # the detector takes a part of it for speech

    def part(self, start: int, end: int) -> SpeechSpan:
        """Return the samples [start, end) of the recording, which lie in the span; the peak is that of the whole."""
        audio = self.audio[start - self.start : end - self.start]
        speech_regions = tuple((max(a, start), min(b, end)) for a, b in self.speech_regions if a < end and b > start)
        return replace(self, start=start, end=end, audio=audio, speech_regions=speech_regions)


def segmentation_config(chunking: ChunkingStrategy, traits: EngineTraits) -> SegmentationConfig:
    """Return the rules of cutting for an engine of these traits: the server's own, or those of the caller."""
    max_span_s = min(SegmentationConfig().max_span_s, traits.max_audio_s)
    if chunking.type == "auto":
        return SegmentationConfig(max_span_s=max_span_s, max_gap_s=traits.max_pause_s, pad_ms=traits.margin_ms)
    return SegmentationConfig(
        max_span_s=max_span_s,
        threshold=chunking.threshold,
        min_silence_ms=chunking.silence_duration_ms,
        # The margin is added on both sides, so it must not be longer than the pause between two regions.
        pad_ms=min(chunking.prefix_padding_ms, chunking.silence_duration_ms),
        # Every such pause separates two segments. The server's own rules pack regions with short pauses into one span.
        max_gap_s=0.0,
    )


# Steps are the same however the samples come, since what is loud is judged by all that is known so far.
_STEP_SAMPLES = 128 * FRAME_SAMPLES  # 4.1 s: what voice detection takes in one call of its network
# What the detector leaves out is sent with `advise` if it is loud for so long. Shorter sounds are knocks and coughs.
_LEAST_LOUD_MS = 1000


class Segmenter:
    """Cuts one recording, block by block; holds the audio of the open span only, and with `advise` of a pause, up to
    the length of a span.

    `levels`: gets the loudness and the speech probability of every frame. `vad`: the use of the detector.
    """

    def __init__(
        self, config: SegmentationConfig, levels: SoundLevels, vad: VoiceDetection = VoiceDetection.STRICT
    ) -> None:
        self._levels, self._vad, self._config = levels, vad, config
        self._frames = 0
        self._settled = 0  # the sample before which all is in a span, or left out for good; only with `advise`
        self._most_samples = int(1000 * config.max_span_s / FRAME_MS) * FRAME_SAMPLES
        self._speech = SpeechProbability()
        self._cutter = SpanCutter(config)
        self._rest = np.zeros(0, np.float32)  # less than a step
        self._kept = np.zeros(0, np.float32)  # what a span may still need, from sample `_kept_from` on
        self._kept_from = 0
        self._peak = np.float32(1.0)

    @property
    def next_start(self) -> int:
        return self._settled if self._vad is VoiceDetection.ADVISE else self._cutter.needed_from

    def push(self, block: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        """Add samples, float32 (n,) at 16 kHz, finite. Returns the spans that are now final, at most 30 s each; with
        the last samples of the recording, which may be none, all that are left."""
        whole = np.concatenate((self._rest, block))
        *steps, self._rest = np.split(whole, range(_STEP_SAMPLES, len(whole) + 1, _STEP_SAMPLES))
        spans = [span for step in steps for span in self._step(step)]
        return [*spans, *self._step(self._rest, is_last=True)] if is_last else spans

    def _step(self, frames: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        self._keep(frames)
        ready = self._cutter.push(*self._scores(frames))
        end = self._kept_from + len(self._kept)
        if is_last:
            ready += self._cutter.finish(end)
        spans = list(map(self._speech_span, ready))
        if self._vad is not VoiceDetection.ADVISE:
            return spans
        return list(self._with_doubtful(spans, end if is_last else self._cutter.needed_from, is_last=is_last))

    def _with_doubtful(self, spans: list[SpeechSpan], end: int, *, is_last: bool) -> Iterator[SpeechSpan]:
        """Yield the spans, and before each what is loud in the pause before it; `end`: no later span begins before."""
        for span in spans:
            yield from self._doubtful(span.start, 1)
            yield span
            self._settled = span.end
        # A pause may last for hours: it is judged in pieces, and its audio need not be kept.
        yield from self._doubtful(end, 1 if is_last else self._most_samples + 1)

    def _doubtful(self, end: int, least: int) -> Iterator[SpeechSpan]:
        """Yield a span for each loud stretch of the pause before `end`, until fewer than `least` samples of it are
        left."""
        samples_per_ms = SAMPLE_RATE // 1000
        margin = self._config.pad_ms * samples_per_ms
        while end - self._settled >= least:
            stop = end
            if end - self._settled > self._most_samples:
                first, last = self._settled // FRAME_SAMPLES, (self._settled + self._most_samples) // FRAME_SAMPLES
                stop = self._levels.quietest(first, last) * FRAME_SAMPLES
            for part in self._levels.left_out(samples_to_ms(self._settled), samples_to_ms(stop)):
                if part.kind is CoverageKind.UNHEARD and part.end_ms - part.start_ms >= _LEAST_LOUD_MS:
                    begin = max(self._settled, part.start_ms * samples_per_ms - margin)
                    self._settled = min(stop, part.end_ms * samples_per_ms + margin)
                    span = self._speech_span(AudioSpan(begin, self._settled))
                    yield replace(span, is_doubtful=True, has_speech=False)
            self._settled = stop

    def _scores(self, frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # Float files may exceed full scale by any factor. The peak so far is the best guess of it.
        self._peak = max(self._peak, np.abs(frames).max(initial=1.0))
        scaled = np.clip(frames / self._peak, -1.0, 1.0)
        probabilities, power = self._speech.push(scaled), frame_power(scaled)
        self._levels.put(self._frames, probabilities, power)
        self._frames += len(power)
        if self._vad is VoiceDetection.OFF:  # all frames are speech; cuts still prefer the least likely
            probabilities = np.maximum(probabilities, np.float32(self._config.threshold))
        return probabilities, power

    def _keep(self, frames: NDArray[np.float32]) -> None:
        needed = min(self.next_start - self._kept_from, len(self._kept))
        self._kept = np.concatenate((self._kept[needed:], frames))
        self._kept_from += needed

    def _speech_span(self, span: AudioSpan) -> SpeechSpan:
        start, end, peak = span.start_samples, span.end_samples, span.peak_probability
        if self._vad is not VoiceDetection.STRICT:  # the cutter knows more, or nothing
            peak = self._levels.peak_probability(start // FRAME_SAMPLES, -(-end // FRAME_SAMPLES))
        has_speech = self._vad is not VoiceDetection.OFF or peak >= self._config.threshold
        return SpeechSpan(start, end, self._audio(span), peak, span.speech_regions, has_speech=has_speech)

    def _audio(self, span: AudioSpan) -> NDArray[np.float32]:
        audio = self._kept[span.start_samples - self._kept_from : span.end_samples - self._kept_from]
        peak = float(np.abs(audio).max(initial=0.0))
        # Always a copy: a view would keep the whole buffer alive. The division may round to above one, hence the clip.
        return np.clip(audio / np.float32(peak), -1.0, 1.0) if peak > 1.0 else audio.copy()


class SpanSegmenter(Protocol):
    """Cuts the blocks of a `RecordingSignal` into spans, in the order in which they begin."""

    def push(self, block: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        """Take the next samples and return the spans that are now final; with the last samples, all that are left."""


def _mixed(decoder: Decoder, source: Source, progress: Progress, caller: str) -> AsyncGenerator[Samples, None]:
    return decoder.stream(source, progress, caller)


@dataclass(frozen=True, slots=True)
class RecordingSignal:
    """The signal that is transcribed of a recording: its channels, mixed. Features make others of the channels."""

    # the blocks of the recording: mono (n,), or (channels, n) where it is split
    stream: Callable[[Decoder, Source, Progress, str], AsyncGenerator[Samples, None]] = _mixed
    # makes what cuts these blocks
    segmenter: Callable[[SegmentationConfig, SoundLevels, VoiceDetection], SpanSegmenter] = Segmenter
    is_split: bool = False  # each voice has spans of its own, which name its speaker
    work: float = 1.0  # seconds of audio to transcribe for each second of the recording
