"""Finds the channels of a recording to transcribe, by its beginning, before the whole recording is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from asr_server.audio.decode import Decoder, Progress
from asr_server.audio.decoder_wire import MAX_CHANNELS
from asr_server.core.errors import InvalidInput, UnsupportedValue
from asr_server.features.stereo.channel_segmenter import ChannelSegmenter
from asr_server.features.stereo.similarity import ChannelComparison, ChannelFindings
from asr_server.recordings.requests import ChannelMode
from asr_server.recordings.segmenter import RecordingSignal

if TYPE_CHECKING:
    from asr_server.audio.decode import Samples, Source
    from asr_server.recordings.requests import RecordingRequest

NUMBER_IGNORED = "the stated number of speakers is ignored: each channel is a person"
TOO_MANY_CHANNELS = f"the channels were mixed: speakers are told apart by channel up to {MAX_CHANNELS} channels"


async def channel_signal(decoder: Decoder, source: Source, request: RecordingRequest, caller: str) -> RecordingSignal:
    """Return what is transcribed of the channels of a file.

    Raises `UnsupportedValue` where channels are to be split and are too many, and what decoding raises before its
    first block.
    """
    mode = request.channel_mode
    if mode is ChannelMode.MIX:
        return RecordingSignal()
    progress = Progress()
    findings = await _findings(decoder, source, progress, caller)
    if progress.file_channels > MAX_CHANNELS:
        if mode is ChannelMode.SPLIT:
            raise UnsupportedValue(
                f"channel_mode=split takes up to {MAX_CHANNELS} channels; the recording has {progress.file_channels}.",
                param="channel_mode",
            )
        return RecordingSignal(warnings=(TOO_MANY_CHANNELS,))
    if mode is ChannelMode.SPLIT or findings.are_people:
        states_number = request.speakers is not None and request.speakers.states_number
        return RecordingSignal(
            Decoder.stream_channels,
            partial(ChannelSegmenter, findings=findings),
            is_split=True,
            work=max(1.0, findings.speech_share),
            warnings=(NUMBER_IGNORED,) if states_number else (),
        )
    if findings.is_one and progress.channels > 1:
        return RecordingSignal(partial(_one_channel, findings.voices[0].clearest))
    return RecordingSignal()


async def _one_channel(
    channel: int, decoder: Decoder, source: Source, progress: Progress, caller: str
) -> AsyncGenerator[Samples, None]:
    async with aclosing(decoder.stream_channels(source, progress, caller)) as blocks:
        async for block in blocks:
            yield block[channel]


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
