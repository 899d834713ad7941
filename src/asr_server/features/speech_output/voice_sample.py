"""Turns a recording of a voice into the sample that a speech engine imitates."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

import numpy as np

from asr_server.audio.resample import Resampler
from asr_server.audio.segmentation import SegmentationConfig, SpeechProbability
from asr_server.core.audio import FRAME_MS, SPEECH_RATE
from asr_server.core.errors import DeadlineExceeded, InvalidInput
from asr_server.features.speakers import reference_audio
from asr_server.features.speech_output.engines.protocol import VoiceSample

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source

MIN_SAMPLE_S, MAX_SAMPLE_S = 2.0, 30.0
_LEAST_SPEECH_S = 1.0


async def voice_sample(decoder: Decoder, recording: Source, text: str, caller: str, timeout_s: float) -> VoiceSample:
    """Return the sample of a recording in which a person says `text` ("" if unknown).

    Raises `invalid_reference`, what the decoder raises, and `DeadlineExceeded`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            allowed_s = (MIN_SAMPLE_S, MAX_SAMPLE_S)
            audio = await reference_audio.decoded(decoder, recording, caller, allowed_s, SPEECH_RATE)
            if await asyncio.to_thread(_spoken_s, audio) < _LEAST_SPEECH_S:
                raise InvalidInput(
                    f"The recording has less than {_LEAST_SPEECH_S:g} s of speech.", code="invalid_reference"
                )
    except TimeoutError:
        raise DeadlineExceeded("The time limit of the request passed while the recording was decoded.") from None
    except InvalidInput as error:
        error.param = "file"
        raise
    digest = hashlib.sha256(audio.tobytes())
    digest.update(text.encode())
    return VoiceSample(audio, text, digest.hexdigest())


def _spoken_s(audio: Samples) -> float:
    """Return the seconds in which the voice detector finds speech."""
    resampler = Resampler()
    at_16_khz = np.concatenate((resampler.push(audio, SPEECH_RATE), resampler.flush()))
    probabilities = SpeechProbability().push(at_16_khz)
    return float((probabilities >= SegmentationConfig().threshold).sum() * FRAME_MS / 1000)
