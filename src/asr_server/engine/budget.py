"""The most tokens that an answer may have, and how many to expect, by the length of its audio."""

from __future__ import annotations

import math

from asr_server.core.audio import SAMPLE_RATE

# Fast speech, 11.8 syllables a second, has 36 tokens a second in Greek, 26 in Hindi and at most 22 in every other
# language of the model (`budget_test`). A loop is ended by `loops.py` long before.
_TOKENS_PER_S = 40.0
# People who read aloud, 184 words a minute, stay below this in all languages but Greek and Hindi.
_EXPECTED_TOKENS_PER_S = 12.0
_MIN_TOKENS = 32


def token_budget(samples: int, tokens_per_s: float = _TOKENS_PER_S) -> int:
    """Return the most new tokens for that many samples of audio at 16 kHz, at least 32."""
    return max(_MIN_TOKENS, math.ceil(samples / SAMPLE_RATE * tokens_per_s))


def expected_tokens(samples: int) -> int:
    """New tokens that memory is planned for. Few answers are longer."""
    return token_budget(samples, _EXPECTED_TOKENS_PER_S)
