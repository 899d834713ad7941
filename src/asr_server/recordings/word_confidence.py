"""The confidence of words: how probable the tokens were that wrote them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from asr_server.core.transcript import Word
from asr_server.engine.protocol import Hypothesis

_DIGITS = 4


def rated(words: Sequence[Word], hypothesis: Hypothesis) -> tuple[Word, ...]:
    """`words` of the hypothesis' text, in order, each with the geometric mean of the probabilities of its tokens.

    A token that writes parts of two words counts for both. All words stay as they are if the tokens do not map to the
    text.
    """
    tokens = [
        (end, logprob)
        for end, logprob, piece in zip(hypothesis.offsets, hypothesis.logprobs, hypothesis.pieces, strict=False)
        if piece  # the others name the language
    ]
    starts = [0, *(end for end, _ in tokens[:-1])]
    # A token that ends inside a character counts for that character.
    ends = [max(end, start + 1) for start, (end, _) in zip(starts, tokens, strict=False)]
    rated_words, at = [], 0
    for word in words:
        start = hypothesis.text.find(word.text, at)
        if start < 0:
            rated_words.append(word)
            continue
        at = start + len(word.text)
        own = [logprob for _, logprob in tokens[bisect_right(ends, start) : bisect_left(starts, at)]]
        rated_words.append(replace(word, confidence=_probability(own)) if own else word)
    return tuple(rated_words)


def _probability(logprobs: Sequence[float]) -> float:
    return round(min(1.0, math.exp(sum(logprobs) / len(logprobs))), _DIGITS)
