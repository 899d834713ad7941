"""The most tokens that an answer may have, by the length of its audio."""

from __future__ import annotations

import math

from asr_server.core.audio import SAMPLE_RATE

# Speech is 3 to 5 text tokens a second in the densest languages; 12 leaves space without letting a loop run for long.
_TOKENS_PER_S = 12.0
_MIN_TOKENS = 32


def token_budget(samples: int, tokens_per_s: float = _TOKENS_PER_S) -> int:
    """Most new tokens for that many samples of audio at 16 kHz, at least 32."""
    return max(_MIN_TOKENS, math.ceil(samples / SAMPLE_RATE * tokens_per_s))
