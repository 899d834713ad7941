"""Finds the spans of speech while a recording is decoded, and the outcome of each part of it: words, silence, sound
without words, or unheard."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter

from asr_server.audio.segmentation import (
    SegmentationConfig,
    SpanCutter,
    SpeechProbability,
    SpeechSpan,
    frame_power,
    most_pad_ms,
    quietest_frame,
)
from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, SAMPLE_RATE, s_to_ms, samples_to_ms
from asr_server.core.errors import AsrError
from asr_server.core.metrics import with_series
from asr_server.core.transcript import CoverageKind, CoveragePart, RepairReason, Segment, UnheardReason
from asr_server.recordings.requests import ChunkingStrategy, VoiceDetection

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Progress, Samples, Source
    from asr_server.engine.protocol import EngineTraits


def segmentation_config(chunking: ChunkingStrategy, traits: EngineTraits) -> SegmentationConfig:
    """Return the rules for cutting audio for an engine with these traits: the server's own, or the caller's."""
    max_span_s = min(SegmentationConfig().max_span_s, traits.max_audio_s)
    if chunking.type == "auto":
        return SegmentationConfig(max_span_s=max_span_s, max_gap_s=traits.max_pause_s, pad_ms=traits.margin_ms)
    pause_ms = chunking.silence_duration_ms
    return SegmentationConfig(
        max_span_s=max_span_s,
        threshold=chunking.threshold,
        min_silence_ms=pause_ms,
        # The margin is added on both sides, so it must not be longer than the pause between two regions.
        pad_ms=min(chunking.prefix_padding_ms, pause_ms, most_pad_ms(max_span_s, pause_ms)),
        # Every such pause separates two segments. The server's own rules pack regions with short pauses into one span.
        max_gap_s=0.0,
    )


# Fixed steps make results independent of how the samples arrive: loudness is judged by all that is known so far.
_STEP_SAMPLES = 128 * FRAME_SAMPLES  # 4.1 s: what voice detection takes in one call of its network
# `advise` sends sound that the detector leaves out if it is loud for this long. Shorter sounds are knocks and coughs.
_LEAST_LOUD_MS = 1000


class Segmenter:
    """Cuts one recording, block by block. Holds only the audio of the open span, and with `advise` also the audio of
    a pause, up to the length of a span.

    `levels`: gets the loudness and the speech probability of every frame. `vad`: the use of the detector.
    """

    def __init__(
        self, config: SegmentationConfig, levels: SoundLevels, vad: VoiceDetection = VoiceDetection.STRICT
    ) -> None:
        self._levels, self._vad, self._config = levels, vad, config
        self._frames = 0
        self._settled = 0  # all samples before it are in a span or left out for good; only with `advise`
        self._most_samples = int(1000 * config.max_span_s / FRAME_MS) * FRAME_SAMPLES
        self._speech = SpeechProbability()
        self._cutter = SpanCutter(config)
        self._rest = np.zeros(0, np.float32)  # samples of an incomplete step
        self._kept = np.zeros(0, np.float32)  # samples that a span may still need, from `_kept_from` on
        self._kept_from = 0
        self._peak = np.float32(1.0)

    @property
    def next_start(self) -> int:
        return self._settled if self._vad is VoiceDetection.ADVISE else self._cutter.needed_from

    def push(self, block: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        """Add samples, float32 (n,) at 16 kHz, finite. Returns the spans that are now final, at most 30 s each. With
        `is_last`, returns all remaining spans; `block` may then be empty."""
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
        spans = list(map(self._cut_out, ready))
        if self._vad is not VoiceDetection.ADVISE:
            return spans
        return list(self._with_doubtful(spans, end if is_last else self._cutter.needed_from, is_last=is_last))

    def _with_doubtful(self, spans: list[SpeechSpan], end: int, *, is_last: bool) -> Iterator[SpeechSpan]:
        """Yield the spans, each after the loud stretches of the pause before it. `end`: no later span begins before."""
        for span in spans:
            yield from self._doubtful(span.start, 1)
            yield span
            self._settled = span.end
        # A pause may last for hours. It is judged in pieces, so that its audio need not be kept.
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
                    span = self._cut_out(SpeechSpan(begin, self._settled))
                    yield replace(span, is_doubtful=True, has_speech=False)
            self._settled = stop

    def _scores(self, frames: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # Float files may exceed full scale by any factor. The peak so far is the best guess of that factor.
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

    def _cut_out(self, span: SpeechSpan) -> SpeechSpan:
        """Return the span with its audio, and with the detector's judgement of it."""
        peak = span.peak_probability
        if self._vad is not VoiceDetection.STRICT:  # the cutter's peak is raised (`off`) or missing (`advise`)
            peak = self._levels.peak_probability(span.start // FRAME_SAMPLES, -(-span.end // FRAME_SAMPLES))
        has_speech = self._vad is not VoiceDetection.OFF or peak >= self._config.threshold
        audio = self._kept[span.start - self._kept_from : span.end - self._kept_from]
        loudest = float(np.abs(audio).max(initial=0.0))
        # Always a copy: a view would keep the whole buffer alive. The division may round to above one, hence the clip.
        audio = np.clip(audio / np.float32(loudest), -1.0, 1.0) if loudest > 1.0 else audio.copy()
        return replace(span, audio=audio, peak_probability=peak, has_speech=has_speech)


class SpanSegmenter(Protocol):
    """Cuts the blocks of a `RecordingSignal` into spans, in the order in which they begin."""

    def push(self, block: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        """Take the next samples and return the spans that are now final; with `is_last`, all remaining spans."""


def _mixed(decoder: Decoder, source: Source, progress: Progress, caller: str) -> AsyncGenerator[Samples, None]:
    return decoder.stream(source, progress, caller)


@dataclass(frozen=True, slots=True)
class RecordingSignal:
    """The signal that is transcribed: the recording's mixed channels. Features make other signals of the channels."""

    # the blocks of the recording: mono (n,), or (channels, n) where it is split
    stream: Callable[[Decoder, Source, Progress, str], AsyncGenerator[Samples, None]] = _mixed
    # makes the segmenter for these blocks
    segmenter: Callable[[SegmentationConfig, SoundLevels, VoiceDetection], SpanSegmenter] = Segmenter
    is_split: bool = False  # each voice has spans of its own, which name its speaker
    work: float = 1.0  # seconds of audio to transcribe for each second of the recording


_CELL_FRAMES = 32  # about 1 s: a pause is judged second by second, each second by the majority of its frames
# Sound louder than the quietest tenth of the speech is not quiet. A fixed level would take the noise of one room for
# speech, and the speech of another for noise.
_QUIETEST_SHARE = 0.1
_SPEECH = 0.5  # the least probability of a frame of speech
_QUIET_DB = -50.0  # dBFS: the limit of a recording in which nobody speaks
_LEAST_UNHEARD_MS = 500  # a shorter pause has hardly room for a word
_FLOOR_DB = -100.0
_PEAKS = 600  # the points of a waveform


class SoundLevels:
    """The loudness and the speech probability of each frame of a recording, in a byte each: 225 kB an hour."""

    def __init__(self) -> None:
        self._loudness = bytearray()  # dB over `_FLOOR_DB`
        self._probabilities = bytearray()  # in parts of 255
        self._speech = np.zeros(256, np.int64)  # the number of frames of speech for each loudness

    def put(self, first: int, probabilities: NDArray[np.float32], power: NDArray[np.float32]) -> None:
        """Note the frames from number `first` on: probabilities in [0, 1] and mean square power, both (k,).

        If a frame is noted again, for another channel, the higher loudness and the higher probability are kept.
        """
        loudness = np.rint(10.0 * np.log10(power + 1e-10) - _FLOOR_DB).clip(0, 255).astype(np.uint8)
        likelihood = np.rint(255.0 * probabilities).clip(0, 255).astype(np.uint8)
        self._speech += np.bincount(loudness[probabilities >= _SPEECH], minlength=256)
        for kept, values in ((self._loudness, loudness), (self._probabilities, likelihood)):
            end = first + len(values)
            kept.extend(bytes(max(0, end - len(kept))))
            known = np.frombuffer(kept, np.uint8)[first:end]
            np.maximum(known, values, out=known)

    def coverage(self, duration_ms: int, segments: Sequence[Segment]) -> tuple[CoveragePart, ...]:
        """Return the parts of a recording of this length, in order and without gaps. Joins neighbours of one kind.

        `segments`: the answers for all audio that the model was given, even those without text. Where segments
        overlap, as on several channels, an unheard one counts most, and one with words counts more than one without.
        """
        parts: list[CoveragePart] = []
        for start_ms, end_ms, segment in _stretches(duration_ms, segments):
            for part in [self._heard(segment, start_ms, end_ms)] if segment else self.left_out(start_ms, end_ms):
                if parts and (parts[-1].kind, parts[-1].reason) == (part.kind, part.reason):
                    parts[-1] = replace(parts[-1], end_ms=part.end_ms)
                else:
                    parts.append(part)
        return tuple(map(self._rated, parts))

    def left_out(self, start_ms: int, end_ms: int) -> Iterator[CoveragePart]:
        """Yield the outcome of a stretch that the model is not given, by what is known of the recording so far."""
        first, last = _frames(start_ms, end_ms)
        count = max(1, round((last - first) / _CELL_FRAMES))
        cells = pairwise(first + (last - first) * number // count for number in range(count + 1))
        for is_loud, alike in groupby(cells, lambda cell: self._is_loud(*cell)):
            run = list(alike)
            part_ms = max(start_ms, int(run[0][0] * FRAME_MS)), min(end_ms, int(run[-1][1] * FRAME_MS))
            if not is_loud:
                yield CoveragePart(*part_ms, CoverageKind.SILENCE)
            elif end_ms - start_ms < _LEAST_UNHEARD_MS:
                yield CoveragePart(*part_ms, CoverageKind.SOUND)
            else:
                yield CoveragePart(*part_ms, CoverageKind.UNHEARD, UnheardReason.DETECTOR)

    def quietest(self, first: int, last: int) -> int:
        """Return the frame in the last third of [first, last) where a cut is best."""
        count = last - first
        return first + quietest_frame(self._loudness[first:last], 2 * count // 3, count)

    def peak_probability(self, first: int, last: int) -> float:
        return max(self._probabilities[first:last]) / 255

    def peaks(self) -> tuple[float, ...]:
        """Return the highest amplitude (root mean square, 0 to 1) of each of `_PEAKS` parts of equal length."""
        loudness = np.frombuffer(bytes(self._loudness), np.uint8)
        if not len(loudness):
            return ()
        starts = np.linspace(0, len(loudness), _PEAKS, endpoint=False).astype(int)
        highest = np.maximum.reduceat(loudness, starts) + _FLOOR_DB
        return tuple(np.round(10 ** (highest / 20), 3).tolist())

    def _heard(self, segment: Segment, start_ms: int, end_ms: int) -> CoveragePart:
        """Return the outcome of a stretch that the model was given."""
        if segment.cut_short:
            return CoveragePart(start_ms, end_ms, CoverageKind.UNHEARD, segment.cut_short)
        if segment.text:
            return CoveragePart(start_ms, end_ms, CoverageKind.WORDS)
        is_loud = self._is_loud(*_frames(start_ms, end_ms))
        return CoveragePart(start_ms, end_ms, CoverageKind.SOUND if is_loud else CoverageKind.SILENCE)

    def _rated(self, part: CoveragePart) -> CoveragePart:
        """Return the part, with its confidence if it is silence."""
        if part.kind is not CoverageKind.SILENCE:
            return part
        first, last = _frames(part.start_ms, part.end_ms)
        speech = np.frombuffer(self._probabilities, np.uint8, last - first, first).mean() / 255
        return replace(part, confidence=round(1.0 - float(speech), 3))

    def _is_loud(self, first: int, last: int) -> bool:
        """Return True if most of these frames are not quiet."""
        counts = np.cumsum(self._speech)
        quiet = np.searchsorted(counts, _QUIETEST_SHARE * counts[-1]) if counts[-1] else _QUIET_DB - _FLOOR_DB
        loud = np.frombuffer(self._loudness, np.uint8, last - first, first) > quiet
        return 2 * int(np.count_nonzero(loud)) > last - first


def _stretches(duration_ms: int, segments: Sequence[Segment]) -> Iterator[tuple[int, int, Segment | None]]:
    """Yield the recording in stretches, each with the segment that counts most there, or None."""
    edges = sorted({0, duration_ms, *(edge for segment in segments for edge in (segment.start_ms, segment.end_ms))})
    owners: list[Segment | None] = [None] * (len(edges) - 1)
    for segment in sorted(segments, key=lambda one: (not one.complete, bool(one.text))):
        first, last = bisect_left(edges, segment.start_ms), bisect_left(edges, segment.end_ms)
        owners[first:last] = [segment] * (last - first)  # replaces segments that count less
    for (start_ms, end_ms), owner in zip(pairwise(edges), owners, strict=True):
        yield start_ms, end_ms, owner


def _frames(start_ms: int, end_ms: int) -> tuple[int, int]:
    return int(start_ms // FRAME_MS), int(-(-end_ms // FRAME_MS))


def damaged(progress: Progress, duration_ms: int) -> list[Segment]:
    """Return a segment for each part where silence replaces damaged packets. No span covers such a part as a whole."""
    times_ms = [(s_to_ms(begin_s), min(s_to_ms(end_s), duration_ms)) for begin_s, end_s in progress.lost_s]
    return [
        Segment(begin_ms, end_ms, "", "", (), 0.0, 1.0, cut_short=UnheardReason.DAMAGED)
        for begin_ms, end_ms in times_ms
        if begin_ms < end_ms
    ]


def check_heard(coverage: Sequence[CoveragePart]) -> None:
    """Raise `incomplete_transcript` if a part is unheard."""
    unheard = [part for part in coverage if part.kind is CoverageKind.UNHEARD]
    if unheard:
        lost_s, first = sum(part.end_ms - part.start_ms for part in unheard) / 1000, unheard[0]
        raise AsrError(
            f"{lost_s} s of the recording were not heard, the first from {first.start_ms / 1000} to "
            f"{first.end_ms / 1000} s ({first.reason}).",
            code="incomplete_transcript",
            param="strict",
        )


def since(coverage: Sequence[CoveragePart], start_ms: int) -> tuple[CoveragePart, ...]:
    """Return the parts from `start_ms` on."""
    rest = (replace(part, start_ms=max(part.start_ms, start_ms)) for part in coverage)
    return tuple(part for part in rest if part.start_ms < part.end_ms)


class RecordingMetrics:
    """Counters of the recordings of one app that were transcribed to their end."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._audio = Counter(
            "asr_recording_audio_seconds_total",
            "Audio of completely transcribed recordings.",
            registry=registry,
        )
        self._covered = Counter(
            "asr_recording_covered_seconds_total",
            "Audio of recordings: `words`, `silence`, `sound`, or why it is unheard.",
            ["coverage"],
            registry=registry,
        )
        self._repaired = Counter(
            "asr_repaired_segments_total",
            "Segments whose first answer was discarded.",
            ["reason"],
            registry=registry,
        )
        heard = (kind for kind in CoverageKind if kind is not CoverageKind.UNHEARD)
        with_series(self._covered, (*heard, *UnheardReason))
        with_series(self._repaired, RepairReason)

    def count(self, audio_s: float, coverage: Sequence[CoveragePart], segments: Sequence[Segment]) -> None:
        """Count a recording with `audio_s` seconds of audio, all channels together."""
        self._audio.inc(audio_s)
        for part in coverage:
            self._covered.labels(part.reason or part.kind).inc((part.end_ms - part.start_ms) / 1000)
        for segment in segments:
            if segment.repaired:
                self._repaired.labels(segment.repaired).inc()
