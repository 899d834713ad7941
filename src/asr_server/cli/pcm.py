"""A recording for a live session: 16-bit PCM at 16 kHz, in chunks, at the pace of speech."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.cli.failure import Failure
from asr_server.core.audio import SAMPLE_RATE

if TYPE_CHECKING:
    pass

CHUNK_MS = 100
CHUNK_SAMPLES = SAMPLE_RATE * CHUNK_MS // 1000
_MAX_AUDIO_S = 24 * 3600.0


async def decoded(path: Path) -> bytes:
    """Decode a recording to little-endian int16, mixed to one channel.

    Raises `Failure`, and `OSError` where the file cannot be opened.
    """
    from asr_server.audio.decode import Decoder
    from asr_server.audio.decoder_wire import DecodeLimits
    from asr_server.core.errors import InvalidInput

    decoder = Decoder(DecodeLimits(max_audio_s=_MAX_AUDIO_S))
    try:
        with path.open("rb") as file:
            audio = await decoder.decode(file)
    except InvalidInput as error:
        raise Failure(error.code, error.message) from None
    finally:
        await decoder.close()
    return bytes((audio * 32_768).clip(-32_768, 32_767).round().astype("<i2").tobytes())


def paced(pcm: bytes, speed: float) -> Iterator[bytes]:
    """Chunks of 100 ms at `speed` times real time; 0 does not wait between them."""
    began_s, chunk_bytes = time.monotonic(), 2 * CHUNK_SAMPLES
    for number, at in enumerate(range(0, len(pcm), chunk_bytes)):
        if speed:
            time.sleep(max(0.0, began_s + number * CHUNK_MS / 1000 / speed - time.monotonic()))
        yield pcm[at : at + chunk_bytes]
