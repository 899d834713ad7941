"""The errors of predicted word boundaries, and of a simple estimate to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.network import AlignerNetwork
from asr_training.alignment.words import SLOT_MS, timestamp_slots
from asr_training.utterances import Utterance

BATCH_S = 120.0

Boundaries = Sequence[float]


@dataclass(frozen=True)
class BoundaryErrors:
    """Mean, median and 95th percentile of the distances to the true boundaries, over `count` boundaries."""

    mean_ms: float
    median_ms: float
    p95_ms: float
    count: int

    @classmethod
    def of(cls, utterances: Sequence[Utterance], predicted: Sequence[Boundaries]) -> BoundaryErrors:
        """Errors of `predicted`: start and end of each word in ms, by utterance. Unknown boundaries do not count."""
        distances = [
            abs(predicted_ms - true_ms)
            for utterance, boundaries in zip(utterances, predicted, strict=True)
            for true_ms, predicted_ms in zip(true_boundaries(utterance), boundaries, strict=True)
            if true_ms is not None
        ]
        median, p95 = np.percentile(distances, (50, 95))
        return cls(float(np.mean(distances)), float(median), float(p95), len(distances))


def true_boundaries(utterance: Utterance) -> list[float | None]:
    """Start and end of each word in ms; `None` if the synthesiser does not report one."""
    places = [place for word in utterance.spoken for place in (word.start, word.end)]
    known = [slot >= 0 for slot in timestamp_slots(utterance.spoken)]
    return [place * 1000 / SAMPLE_RATE if is_known else None for place, is_known in zip(places, known, strict=True)]


def predicted_boundaries(aligner: AlignerNetwork, utterances: Sequence[Utterance]) -> list[Boundaries]:
    """Start and end of each word in ms, predicted by the network and repaired by the SDK, for each utterance."""
    from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForceAlignProcessor

    repair = Qwen3ForceAlignProcessor().fix_timestamp
    order = sorted(range(len(utterances)), key=lambda index: len(utterances[index].samples))
    predicted: dict[int, Boundaries] = {}
    while order:
        count = max(1, int(BATCH_S * SAMPLE_RATE / len(utterances[order[-1]].samples)))
        picked, order = order[-count:], order[:-count]
        slots = aligner.slots([utterances[index] for index in picked])
        predicted |= {index: repair(np.array(row) * SLOT_MS) for index, row in zip(picked, slots, strict=True)}
    return [predicted[index] for index in range(len(utterances))]


def estimated_boundaries(utterance: Utterance) -> Boundaries:
    """Words spread in proportion to their letters between the true start and the true end of the speech."""
    first, last = utterance.spoken[0].start, utterance.spoken[-1].end
    letters = np.cumsum([0, *(len(word) for word in utterance.words)])
    ends = (first + (last - first) * letters / letters[-1]) * 1000 / SAMPLE_RATE
    return [float(boundary) for pair in pairwise(ends) for boundary in pair]
