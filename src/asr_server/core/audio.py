"""The audio formats inside the server, mono at one rate each, and the conversions between samples and time."""

from __future__ import annotations

import math
import struct

SAMPLE_RATE = 16_000  # Hz: the only rate that the feature extractor of Qwen3-ASR and the Silero VAD accept
# Hz, of all speech that the server generates: the rate of OpenAI's `pcm` and of Qwen3-TTS.
SPEECH_RATE = 24_000

# The Silero VAD was trained only on frames of this length. Segmentation and endpointing decide once per frame.
FRAME_SAMPLES = 512
FRAME_MS = 1000 * FRAME_SAMPLES / SAMPLE_RATE

# How a recording is cut, unless the model asks for other values.
PAD_MS = 300  # margin around speech: onsets and trailing consonants score low
MAX_GAP_S = 2.0  # a longer silence is left out, between two spans

# The size of a stream whose length is not known yet. Readers take it to mean "until the end of the file".
_UNKNOWN = 0xFFFF_FFFF
_WAV_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
WAV_HEADER_BYTES = _WAV_HEADER.size
_PCM, _SAMPLE_BYTES = 1, 2


def wav_header(data_bytes: int | None, rate_hz: int, channels: int = 1) -> bytes:
    """Return the 44-byte header for 16-bit samples. None: their size is not known yet. Raises ValueError over 4 GiB."""
    if data_bytes is not None and not 0 <= data_bytes < _UNKNOWN - WAV_HEADER_BYTES:
        raise ValueError(f"{data_bytes} bytes do not fit into a WAV file")
    riff_bytes = _UNKNOWN if data_bytes is None else WAV_HEADER_BYTES - 8 + data_bytes
    frame_bytes = channels * _SAMPLE_BYTES
    return _WAV_HEADER.pack(
        *(b"RIFF", riff_bytes, b"WAVE", b"fmt ", 16, _PCM, channels),
        *(rate_hz, rate_hz * frame_bytes, frame_bytes, 8 * _SAMPLE_BYTES),
        *(b"data", _UNKNOWN if data_bytes is None else data_bytes),
    )


def samples_to_s(samples: int) -> float:
    return samples / SAMPLE_RATE


def samples_to_ms(samples: int) -> int:
    return round(samples * 1000 / SAMPLE_RATE)


def samples_to_whole_ms(samples: int) -> int:
    return samples * 1000 // SAMPLE_RATE


def s_to_samples(duration_s: float) -> int:
    return int(duration_s * SAMPLE_RATE)


def s_to_ms(duration_s: float) -> int:
    return round(1000 * duration_s)


def ms_to_frames(duration_ms: float) -> int:
    return math.ceil(duration_ms / FRAME_MS)
