"""The most frames that a sentence may take, by its length and its script. Pure.

The model sometimes does not end: about one sentence in 200 to 300 of the released Base checkpoints goes on in noise
(github.com/QwenLM/Qwen3-TTS/issues/118, github.com/sgl-project/sglang-omni/issues/1179). A budget bounds that, and must
not cut slow speech. People who read aloud (IReST, Trauzettel-Klosinski and Dietz 2012) take 0.8 frames of 80 ms for a
character of alphabets (917 to 1,078 a minute), 2.9 for a Chinese one (255 a minute) and 2.1 for a Japanese one (357).
"""

from __future__ import annotations

import math
import unicodedata

FRAME_SAMPLES = 1_920
# What the SDK itself stops at unless a checkpoint says otherwise.
MAX_FRAMES = 2_048
# Silence before and behind the words, and a short text spoken slowly: 4 s.
_LEAST = 50
# Three times the speed of reading aloud, so that slow speech with pauses is not cut.
_LETTER, _SYLLABLE = 2.5, 9.0
# "7" may be "siebenundsiebzig" with its neighbour, and "%" "per cent": 1.2 s each.
_DIGIT_OR_SIGN = 15.0


def frame_budget(text: str) -> int:
    """Most frames of 80 ms for `text`."""
    return min(MAX_FRAMES, math.ceil(_LEAST + sum(map(_frames, text))))


def _frames(character: str) -> float:
    category = unicodedata.category(character)
    if category.startswith(("N", "S")):
        return _DIGIT_OR_SIGN
    # Ideographs, kana, hangul and what belongs to them are wide: each is a syllable or more.
    return _SYLLABLE if unicodedata.east_asian_width(character) in "WF" and category[0] == "L" else _LETTER
