"""Uses the beginning of a recording to find which channels to transcribe, before the whole recording is decoded."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from asr_server.audio.decode import Decoder, Progress
from asr_server.audio.decoder_wire import MAX_CHANNELS
from asr_server.audio.segmentation import SegmentationConfig, SpeechSpan
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.core.errors import InvalidInput
from asr_server.features.speakers.diarization.turns import label
from asr_server.features.stereo.similarity import (
    SILENCE_DB,
    ChannelComparison,
    ChannelFindings,
    frame_levels,
    highest_around,
)
from asr_server.recordings.requests import VoiceDetection
from asr_server.recordings.segmenter import RecordingSignal, Segmenter, SoundLevels
from asr_server.server_feature import ServerFeature
from asr_server.services import FeatureParts

if TYPE_CHECKING:
    from asr_server.audio.decode import Source

_OVER_CROSSTALK_DB = 6.0  # sound that is this much louder than the usual crosstalk belongs to the channel
_REACH = 8  # frames, 256 ms: crosstalk may be late, and the short pauses of the other speaker have none
_HOLD = 5  # frames before and after own speech that belong to it; less than `_REACH`
_AHEAD = _REACH + _HOLD
_LEAST_TURN = SAMPLE_RATE * 3 // 10  # samples of another channel's speech that divide a span


@dataclass(slots=True)
class _Channel:
    """A channel of the recording, and its speech that has not been returned yet."""

    index: int
    speaker: str
    segmenter: Segmenter
    waiting: deque[SpeechSpan] = field(default_factory=deque)  # spans whose division is not known yet
    regions: deque[tuple[int, int]] = field(default_factory=deque)  # of speech that may divide spans of other channels
    has_ended: bool = False

    @property
    def next_end(self) -> float:
        """The sample before which all speech of the channel is known."""
        return np.inf if self.has_ended else self.segmenter.next_start

    @property
    def next_start(self) -> float:
        """The sample before which no later turn begins."""
        return self.waiting[0].start if self.waiting else self.next_end

    def add(self, spans: Iterable[SpeechSpan]) -> None:
        for span in spans:
            self.waiting.append(replace(span, speaker=self.speaker))
            self.regions.extend(span.speech_regions)


class ChannelSegmenter:
    """Cuts several channels into spans. Holds the audio of the open span of each, and less than a span after it."""

    def __init__(
        self, config: SegmentationConfig, levels: SoundLevels, vad: VoiceDetection, *, findings: ChannelFindings
    ) -> None:
        self._margin = config.pad_ms * SAMPLE_RATE // 1000
        self._channels = [
            _Channel(voice.clearest, label(voice.channel), Segmenter(config, levels, vad)) for voice in findings.voices
        ]
        kept = [channel.index for channel in self._channels]
        self._crosstalk_db = findings.crosstalk_db[np.ix_(kept, kept)]
        self._rest: NDArray[np.float32] = np.zeros((len(kept), 0), np.float32)
        self._before = np.full((len(kept), _AHEAD), SILENCE_DB)  # levels of the last frames
        self._ready: list[tuple[int, int, SpeechSpan]] = []
        self._numbers = count()

    def push(self, block: NDArray[np.float32], *, is_last: bool = False) -> list[SpeechSpan]:
        """Add samples, float32 (channels, n) at 16 kHz, finite. Returns the spans that are now final. With `is_last`,
        `block` may be empty, and all remaining spans are returned."""
        own = block[[channel.index for channel in self._channels]]
        self._rest = np.concatenate((self._rest, own), axis=1)
        self._cut(max(0, self._rest.shape[1] // FRAME_SAMPLES - (0 if is_last else _AHEAD)))
        if is_last:
            for channel, rest in zip(self._channels, self._rest, strict=True):
                channel.add(channel.segmenter.push(rest, is_last=True))
                channel.has_ended = True
        return list(self._released())

    def _cut(self, frames: int) -> None:
        """Give the next frames to the segmenters of their channels."""
        own = self._own(frames)
        ready, self._rest = np.split(self._rest, [frames * FRAME_SAMPLES], axis=1)
        ready = np.where(np.repeat(own, FRAME_SAMPLES, axis=1), ready, np.float32(0.0))
        for channel, samples in zip(self._channels, ready, strict=True):
            channel.add(channel.segmenter.push(samples))

    def _own(self, frames: int) -> NDArray[np.bool_]:
        """Return (channels, frames): True where a frame is louder than the crosstalk of the other channels."""
        whole = self._rest.shape[1] // FRAME_SAMPLES * FRAME_SAMPLES
        levels = np.concatenate((self._before, frame_levels(self._rest[:, :whole], FRAME_SAMPLES)), axis=1)
        self._before = levels[:, frames : frames + _AHEAD]
        around = highest_around(levels, _REACH)
        heard = (around[:, None] + self._crosstalk_db[:, :, None]).max(axis=0)
        over = highest_around(levels - heard, _HOLD)[:, _AHEAD : _AHEAD + frames]
        return np.asarray(over > _OVER_CROSSTALK_DB)

    def _released(self) -> Iterator[SpeechSpan]:
        """Divide the spans during which all other speech is known. Yield the turns that no earlier turn can follow."""
        for channel in self._channels:
            others = [other for other in self._channels if other is not channel]
            while channel.waiting and all(other.next_end >= channel.waiting[0].end for other in others):
                span = channel.waiting.popleft()
                for turn in self._turns(span, [region for other in others for region in other.regions]):
                    heapq.heappush(self._ready, (turn.start, next(self._numbers), turn))
        settled = min(channel.next_start for channel in self._channels)
        for channel in self._channels:
            while channel.regions and channel.regions[0][1] <= settled:
                channel.regions.popleft()
        while self._ready and self._ready[0][0] < settled:
            yield heapq.heappop(self._ready)[2]

    def _turns(self, span: SpeechSpan, others: Sequence[tuple[int, int]]) -> Iterator[SpeechSpan]:
        start = span.start
        for (_, end), (begin, _) in pairwise(span.speech_regions):
            if any(min(last, begin) - max(first, end) >= _LEAST_TURN for first, last in others):
                middle = (end + begin) // 2
                yield span.part(start, min(end + self._margin, middle))
                start = max(begin - self._margin, middle)
        yield span.part(start, span.end)


async def channel_signal(decoder: Decoder, source: Source, caller: str) -> RecordingSignal:
    """Return the signal of the channels of a file that are transcribed.

    Raises `unsupported_value` if there are too many channels, and the errors of decoding before its first block.
    """
    progress = Progress()
    findings = await _findings(decoder, source, progress, caller)
    if progress.file_channels > MAX_CHANNELS:
        raise InvalidInput(
            f"channel_mode=split takes up to {MAX_CHANNELS} channels; the recording has {progress.file_channels}.",
            code="unsupported_value",
            param="channel_mode",
        )
    return RecordingSignal(
        Decoder.stream_channels,
        partial(ChannelSegmenter, findings=findings),
        is_split=True,
        work=max(1.0, findings.speech_share),
    )


async def _findings(decoder: Decoder, source: Source, progress: Progress, caller: str) -> ChannelFindings:
    """Compare the channels for as long as that may change the result."""
    comparison = ChannelComparison(1)
    try:
        async with aclosing(decoder.stream_channels(source, progress, caller)) as blocks:
            async for block in blocks:
                if comparison.channels != len(block):
                    comparison = ChannelComparison(len(block))
                if await asyncio.to_thread(comparison.push, block):
                    break
    except InvalidInput:
        # The audio before the damage is transcribed first. Then decoding finds the error again.
        if not progress.decoded_samples:
            raise
    return await asyncio.to_thread(comparison.findings)


SERVER = ServerFeature(build=lambda core: FeatureParts(split_signal=channel_signal))
