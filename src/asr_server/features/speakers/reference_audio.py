"""Decodes whole recordings of a voice, if their length is within the limits."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from asr_server.audio.decode import Progress
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import InvalidInput

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples, Source


async def decoded(
    decoder: Decoder, recording: Source, caller: str, allowed_s: tuple[float, float], rate_hz: int = SAMPLE_RATE
) -> Samples:
    """Return (n,) float32 at `rate_hz`, in [-1, 1]. A recording that is too long is not decoded to its end.

    Raises `invalid_reference` and what the decoder raises.
    """
    least_s, most_s = allowed_s
    blocks: list[Samples] = []
    progress = Progress(rate_hz=rate_hz)
    async with aclosing(decoder.stream(recording, progress, caller)) as stream:
        async for block in stream:
            blocks.append(block)
            if progress.decoded_s > most_s:
                raise InvalidInput(f"The recording is longer than {most_s:g} s.", code="invalid_reference")
    if progress.decoded_s < least_s:
        raise InvalidInput(f"The recording is shorter than {least_s:g} s.", code="invalid_reference")
    samples = np.concatenate(blocks)
    peak = max(np.abs(samples).max(), np.float32(1.0))  # float files may exceed full scale
    scaled: Samples = np.clip(samples / peak, -1.0, 1.0)
    return scaled
