"""Finds the channels of a recording to transcribe, by its beginning, before the whole recording is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server.audio.channels import MAX_CHANNELS
from asr_server.audio.decode import Progress
from asr_server.core.errors import InvalidInput, UnsupportedValue
from asr_server.features.stereo.channel_segmenter import ChannelSegmenter
from asr_server.features.stereo.similarity import ChannelComparison, ChannelFindings
from asr_server.recordings.requests import ChannelMode
from asr_server.recordings.segmenter import Segmenter

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source
    from asr_server.audio.segmentation.config import SegmentationConfig

NUMBER_IGNORED = "the stated number of speakers is ignored: each channel is a person"
TOO_MANY_CHANNELS = f"the channels were mixed: speakers are told apart by channel up to {MAX_CHANNELS} channels"


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """How the channels of a recording are transcribed.

    `findings`: None where all are mixed. `is_split`: each voice has its own spans, with its channel as the speaker;
    otherwise the clearest of several copies is transcribed. `warning`: what the caller should know.
    """

    findings: ChannelFindings | None = None
    is_split: bool = False
    warning: str | None = None

    @property
    def work(self) -> float:
        """Seconds of audio to transcribe for each second of the recording."""
        return max(1.0, self.findings.speech_share) if self.findings and self.is_split else 1.0

    def segmenter(self, config: SegmentationConfig) -> Segmenter | ChannelSegmenter:
        """What cuts the blocks of `stream`."""
        return ChannelSegmenter(config, self.findings) if self.findings and self.is_split else Segmenter(config)

    async def stream(
        self, decoder: Decoder, source: Source, progress: Progress, caller: str
    ) -> AsyncGenerator[Samples, None]:
        """The blocks of the recording: (channels, n) where it is split, otherwise mono (n,)."""
        if self.findings is None:
            async with aclosing(decoder.stream(source, progress, caller)) as blocks:
                async for block in blocks:
                    yield block
            return
        async with aclosing(decoder.stream_channels(source, progress, caller)) as blocks:
            async for block in blocks:
                yield block if self.is_split else block[self.findings.voices[0].clearest]


async def channel_plan(decoder: Decoder, source: Source, mode: ChannelMode, caller: str) -> ChannelPlan:
    """What becomes of the channels of a file.

    Raises `UnsupportedValue` where channels are to be split and are too many, and what decoding raises before its
    first block.
    """
    if mode is ChannelMode.MIX:
        return ChannelPlan()
    progress = Progress()
    findings = await _findings(decoder, source, progress, caller)
    if progress.file_channels > MAX_CHANNELS:
        if mode is ChannelMode.SPLIT:
            raise UnsupportedValue(
                f"channel_mode=split takes up to {MAX_CHANNELS} channels; the recording has {progress.file_channels}.",
                param="channel_mode",
            )
        return ChannelPlan(warning=TOO_MANY_CHANNELS)
    if mode is ChannelMode.SPLIT or findings.are_people:
        return ChannelPlan(findings, is_split=True)
    return ChannelPlan(findings) if findings.is_one and progress.channels > 1 else ChannelPlan()


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
