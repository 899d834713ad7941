"""Answers that do not end: the most tokens that one may have, and loops, in token ids while they are being decoded
and in a text afterwards. Pure.

The caller handles a loop in ids: it transcribes the audio again in halves. A loop of short units in a text is folded,
"thank you thank you thank you ..." to "thank you", by the rule of the model's own package. Repeated sentences remain,
since they were said: a chorus, a litany.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from asr_server.core.audio import SAMPLE_RATE

# A loop is a unit of tokens that fills this much of the answer's end and occurs this often there. Digit strings and
# emphasis ("no no no no") stay below both. A loop runs on for one turn and eight tokens at most before it is noticed.
_LOOP_TOKENS = 48
_MIN_TURNS = 6
_MAX_UNIT = 64
_TEXT_UNIT_CHARS = 20
_TEXT_REPEATS = 20
# A unit repeated at least n times in a row, with spaces or nothing between. Lazy, so that the shortest unit matches.
_TEXT_LOOP = re.compile(rf"(\S(?:.{{0,{_TEXT_UNIT_CHARS - 1}}}?))(?:\s*\1){{{_TEXT_REPEATS - 1},}}", re.DOTALL)

_BLANKS = re.compile(rf"\s{{{_TEXT_REPEATS}}}")

# Fast speech, 11.8 syllables a second, has 36 tokens a second in Greek, 26 in Hindi and at most 22 in every other
# language of the model. A loop is stopped long before that.
_TOKENS_PER_S = 40.0
# People who read aloud, at 184 words a minute, stay below this in all languages except Greek and Hindi.
_EXPECTED_TOKENS_PER_S = 12.0
_MIN_TOKENS = 32


def token_budget(samples: int, tokens_per_s: float = _TOKENS_PER_S) -> int:
    """Return the most new tokens for that many samples of audio at 16 kHz, at least 32."""
    return max(_MIN_TOKENS, math.ceil(samples / SAMPLE_RATE * tokens_per_s))


def expected_tokens(samples: int) -> int:
    # Memory is planned for this many: few answers are longer.
    return token_budget(samples, _EXPECTED_TOKENS_PER_S)


def loop(ids: Sequence[int]) -> int:
    """Return the length of the unit that the end of `ids` repeats, or 0."""
    count = len(ids)
    # Called often for every row, so first look for the last token: it rarely occurs among the 64 tokens before it.
    if count < _LOOP_TOKENS or (last := ids[-1]) not in ids[-1 - _MAX_UNIT : -1]:
        return 0
    for unit in range(1, min(_MAX_UNIT, count // _MIN_TURNS) + 1):
        if ids[-1 - unit] == last:
            start = count - max(_LOOP_TOKENS, unit * _MIN_TURNS)
            if start >= 0 and ids[start + unit :] == ids[start : count - unit]:
                return unit
    return 0


def without_loop(ids: Sequence[int], unit: int) -> int:
    """Return how many of `ids` to keep: all up to the first repetition of the loop of `unit` ids at their end."""
    keep = len(ids)
    while keep > unit and ids[keep - 1] == ids[keep - 1 - unit]:
        keep -= 1
    return keep


def may_repeat(text: str) -> bool:
    """Return False if no unit of up to 20 characters occurs 20 times in a row, with blanks between or without.

    It is called for every answer, so it looks at few places: a unit that repeats that often fills the ten units from
    one of them on.
    """
    packed = "".join(text.split())
    half = _TEXT_REPEATS // 2
    for unit in range(1, _TEXT_UNIT_CHARS + 1):
        for at in range(0, len(packed) - half * unit + 1, half * unit):
            if packed[at + unit : at + half * unit] == packed[at : at + (half - 1) * unit]:
                return True
    return _BLANKS.search(text) is not None


def collapse(text: str) -> str:
    """Return `text` with every unit of up to 20 characters that occurs 20 times or more in a row reduced to one."""
    return _TEXT_LOOP.sub(r"\1", text)
