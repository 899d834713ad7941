"""The audio formats inside the server, mono at one rate each, and the conversions between samples and time."""

from __future__ import annotations

import math

SAMPLE_RATE = 16_000  # Hz: the feature extractor of Qwen3-ASR and the Silero VAD take no other
# Hz, of all speech that the server makes: what OpenAI's `pcm` has, and Qwen3-TTS makes.
SPEECH_RATE = 24_000

# The Silero VAD was trained on frames of this length alone. Segmentation and endpointing decide once a frame.
FRAME_SAMPLES = 512
FRAME_MS = 1000 * FRAME_SAMPLES / SAMPLE_RATE

# How a recording is cut, unless the model asks for another way.
PAD_MS = 300  # margin around speech: onsets and trailing consonants score low
MAX_GAP_S = 2.0  # a longer silence is left out, between two spans


def samples_to_s(samples: int) -> float:
    """Seconds, unrounded."""
    return samples / SAMPLE_RATE


def samples_to_ms(samples: int) -> int:
    """Return the nearest millisecond."""
    return round(samples * 1000 / SAMPLE_RATE)


def samples_to_whole_ms(samples: int) -> int:
    """Return the milliseconds that are complete: rounded down."""
    return samples * 1000 // SAMPLE_RATE


def s_to_samples(duration_s: float) -> int:
    """Return the samples that are complete: rounded down."""
    return int(duration_s * SAMPLE_RATE)


def s_to_ms(duration_s: float) -> int:
    """Return the nearest millisecond."""
    return round(1000 * duration_s)


def ms_to_frames(duration_ms: float) -> int:
    """Return the frames that cover a duration: rounded up."""
    return math.ceil(duration_ms / FRAME_MS)
