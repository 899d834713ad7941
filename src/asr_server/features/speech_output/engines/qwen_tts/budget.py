"""The most frames that a sentence may take, by how many syllables its script has. Pure.

The model sometimes does not end: about one sentence in 200 to 300 of the released Base checkpoints goes on in noise
(github.com/QwenLM/Qwen3-TTS/issues/118, github.com/sgl-project/sglang-omni/issues/1179). A budget bounds that, and must
not cut slow speech.
"""

from __future__ import annotations

import math
import re

from asr_server.text.syllables import syllables

FRAME_SAMPLES = 1_920
_FRAME_S = 0.08
# The SDK itself stops here unless a checkpoint says otherwise: 164 s.
MAX_FRAMES = 2_048
# Silence before and after the words, and a short text spoken slowly: 4 s.
_LEAST = 50
# A third of the slowest of the measured languages, Mandarin with 5.2 syllables a second (Pellegrino, Coupé and Marsico
# 2011), so that slow speech with pauses is not cut.
_SYLLABLES_PER_S = 1.7
# A text in a script without spaces is read piece by piece: the estimates of words are kept.
_PIECE = re.compile(r"\S{1,16}")


def frame_budget(text: str, language: str = "") -> int:
    """Return the most frames of 80 ms for `text` in `language` (its English name)."""
    count = sum(syllables(piece, language) for piece in _PIECE.findall(text))
    return min(MAX_FRAMES, _LEAST + math.ceil(count / _SYLLABLES_PER_S / _FRAME_S))
