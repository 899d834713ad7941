"""Which channels of a recording are transcribed: found by listening to its beginning, before it is decoded for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from asr_server.audio.channels import MAX_CHANNELS
from asr_server.audio.decode import Progress
from asr_server.core.errors import InvalidInput, UnsupportedValue
from asr_server.features.stereo.channel_segmenter import ChannelSegmenter
from asr_server.features.stereo.similarity import ChannelComparison, ChannelFindings
from asr_server.recordings.requests import ChannelMode
from asr_server.recordings.segmenter import Signal

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source
    from asr_server.audio.segmentation.config import SegmentationConfig
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import SpanSegmenter

NUMBER_IGNORED = "the stated number of speakers is ignored: each channel is a person"
TOO_MANY_CHANNELS = f"the channels were mixed: speakers are told apart by channel up to {MAX_CHANNELS} channels"


class _ClearestCopy(Signal):
    """All channels have the same sound: the clearest of them is transcribed."""

    def __init__(self, findings: ChannelFindings) -> None:
        self._channel = findings.voices[0].clearest

    async def stream(
        self, decoder: Decoder, source: Source, progress: Progress, caller: str
    ) -> AsyncGenerator[Samples, None]:
        """Yield the blocks of one channel: mono (n,)."""
        async with aclosing(decoder.stream_channels(source, progress, caller)) as blocks:
            async for block in blocks:
                yield block[self._channel]


class _SplitChannels(Signal):
    """Each channel with speech is a person, with spans of its own and its letter as the speaker."""

    is_split = True

    def __init__(self, findings: ChannelFindings, request: RecordingRequest) -> None:
        self._findings = findings
        self.work = max(1.0, findings.speech_share)
        if request.speakers is not None and request.speakers.states_number:
            self.warnings = (NUMBER_IGNORED,)

    def segmenter(self, config: SegmentationConfig) -> SpanSegmenter:
        """Return what cuts each channel."""
        return ChannelSegmenter(config, self._findings)

    def stream(
        self, decoder: Decoder, source: Source, progress: Progress, caller: str
    ) -> AsyncGenerator[Samples, None]:
        """Return the blocks of all channels: (channels, n)."""
        return decoder.stream_channels(source, progress, caller)


async def channel_signal(decoder: Decoder, source: Source, request: RecordingRequest, caller: str) -> Signal:
    """Return what is transcribed of the channels of a file.

    Raises `UnsupportedValue` where channels are to be split and are too many, and what decoding raises before its
    first block.
    """
    mode = request.channel_mode
    if mode is ChannelMode.MIX:
        return Signal()
    progress = Progress()
    findings = await _findings(decoder, source, progress, caller)
    if progress.file_channels > MAX_CHANNELS:
        if mode is ChannelMode.SPLIT:
            raise UnsupportedValue(
                f"channel_mode=split takes up to {MAX_CHANNELS} channels; the recording has {progress.file_channels}.",
                param="channel_mode",
            )
        mixed = Signal()
        mixed.warnings = (TOO_MANY_CHANNELS,)
        return mixed
    if mode is ChannelMode.SPLIT or findings.are_people:
        return _SplitChannels(findings, request)
    return _ClearestCopy(findings) if findings.is_one and progress.channels > 1 else Signal()


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
        # What comes before the damage is transcribed first, and then the error is found again.
        if not progress.decoded_samples:
            raise
    return await asyncio.to_thread(comparison.findings)
