"""The language of a short segment, weighed against that of the speech around it. Pure.

A model that hears a laugh, a name or one word may take it for any language. A segment in another language than the
speech around it is an outlier, unless its language is sure. It is heard again in the language around it, and the answer
that is likelier in all is taken.

How sure a language must be follows from seconds of speech: its probability by the model is multiplied by its share of
the speech. Seconds count as much as the model was sure of their language, and half as much for each minute between, so
that speech that has changed its language is soon weighed by the new one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server.engine.protocol import Finish

if TYPE_CHECKING:
    from asr_server.core.transcript import Segment
    from asr_server.engine.protocol import Hypothesis

# A longer segment tells its language by itself: evaluations of language recognition have tests of 3, 10 and 30 s.
LONGEST_S = 10.0
# The time between two segments after which one says half as much about the language of the other.
_HALF_S = 60.0
# Segments before a segment that are looked at.
REACH = 64


@dataclass(frozen=True, slots=True)
class Heard:
    """A stretch of speech of one person or more, and the answer for it."""

    start_s: float
    end_s: float
    answer: Hypothesis

    @property
    def seconds(self) -> float:
        """Return the length."""
        return self.end_s - self.start_s

    def around(self, others: Iterable[Heard]) -> defaultdict[str, float]:
        """Return the seconds that `others` have of each language, as they count here."""
        weights: defaultdict[str, float] = defaultdict(float)
        for other in others:
            if other.answer.text and other.answer.language:
                gap_s = max(0.0, self.start_s - other.end_s, other.start_s - self.end_s)
                probability = math.exp(other.answer.language_logprob)
                weights[other.answer.language] += other.seconds * probability * 0.5 ** (gap_s / _HALF_S)
        return weights


@dataclass(frozen=True, slots=True)
class Rival:
    """The language of the speech around a segment, which may be its own."""

    language: str
    share: float  # of it among the seconds in it and in the language that was found (0..1, neither included)

    def is_likelier(self, second: Hypothesis, first: Hypothesis) -> bool:
        """Return True if `second`, in this language, is likelier than `first`, in the one that was found. No words and
        an answer that was stopped never are."""
        if not second.text or second.finish is not Finish.END:
            return False
        return _mean_logprob(second, self.share) > _mean_logprob(first, 1.0 - self.share)


def _mean_logprob(answer: Hypothesis, share: float) -> float:
    """Return the log-probability of language and words, divided by the tokens: two answers differ in length."""
    return (math.log(share) + sum(answer.logprobs)) / len(answer.ids)


def rival(one: Heard, others: Iterable[Heard]) -> Rival | None:
    """Return the language in which a segment should be heard again, by the speech around it; None for none.

    The model finds that language as probable as what the one that was found leaves to others, or less. Where even this
    would not make it the likelier one, the language is sure.
    """
    found = one.answer.language
    if not one.answer.text or not found or one.seconds > LONGEST_S:
        return None
    weights = one.around(others)
    language = max(weights, key=weights.__getitem__, default=found)
    # The segment counts for the language that it is in, whichever that is.
    own_s, other_s = weights[found] + one.seconds, weights[language] + one.seconds
    probability = math.exp(one.answer.language_logprob)
    is_outlier = weights[language] > own_s  # which is never so of the language that was found
    if not is_outlier or probability * own_s >= (1.0 - probability) * other_s:
        return None
    return Rival(language, other_s / (own_s + other_s))


def main_language(segments: Sequence[Segment]) -> str:
    """Return the language of most of the speech, by its seconds, since scripts differ in characters; "" for none."""
    weights: Counter[str] = Counter()
    for segment in segments:
        if segment.language:
            weights[segment.language] += segment.end_ms - segment.start_ms
    return max(weights, key=weights.__getitem__, default="")
