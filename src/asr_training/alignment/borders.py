"""How far told borders lie from true ones, and the plain estimate to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.network import AlignerNetwork
from asr_training.alignment.words import SLOT_MS, stamp_slots
from asr_training.utterances import Utterance

BATCH_S = 120.0

Borders = Sequence[float]


@dataclass(frozen=True)
class BorderErrors:
    """Distances between told and true borders in milliseconds: mean, median, 95th percentile, over `count` borders."""

    mean_ms: float
    median_ms: float
    p95_ms: float
    count: int

    @classmethod
    def of(cls, utterances: Sequence[Utterance], told: Sequence[Borders]) -> BorderErrors:
        """Errors of `told`: for each utterance start and end of each word, ms. Borders nobody knows do not count."""
        distances = [
            abs(told_ms - true_ms)
            for utterance, borders in zip(utterances, told, strict=True)
            for true_ms, told_ms in zip(true_borders(utterance), borders, strict=True)
            if true_ms is not None
        ]
        median, p95 = np.percentile(distances, (50, 95))
        return cls(float(np.mean(distances)), float(median), float(p95), len(distances))


def true_borders(utterance: Utterance) -> list[float | None]:
    """Start and end of each word in ms; `None` where the synthesiser did not tell."""
    places = [place for word in utterance.spoken for place in (word.start, word.end)]
    known = [slot >= 0 for slot in stamp_slots(utterance.spoken)]
    return [place * 1000 / SAMPLE_RATE if told else None for place, told in zip(places, known, strict=True)]


def told_borders(aligner: AlignerNetwork, utterances: Sequence[Utterance]) -> list[Borders]:
    """Start and end of each word in ms as the network says, repaired by the SDK, in the order of `utterances`."""
    from qwen_asr.inference.qwen3_forced_aligner import Qwen3ForceAlignProcessor

    repair = Qwen3ForceAlignProcessor().fix_timestamp
    order = sorted(range(len(utterances)), key=lambda index: len(utterances[index].samples))
    told: dict[int, Borders] = {}
    while order:
        count = max(1, int(BATCH_S * SAMPLE_RATE / len(utterances[order[-1]].samples)))
        picked, order = order[-count:], order[:-count]
        slots = aligner.slots([utterances[index] for index in picked])
        told |= {index: repair(np.array(row) * SLOT_MS) for index, row in zip(picked, slots, strict=True)}
    return [told[index] for index in range(len(utterances))]


def estimated_borders(utterance: Utterance) -> Borders:
    """Words spread by their letters from the first sound to the last, the two true ends given: what costs nothing."""
    first, last = utterance.spoken[0].start, utterance.spoken[-1].end
    letters = np.cumsum([0, *(len(word) for word in utterance.words)])
    ends = (first + (last - first) * letters / letters[-1]) * 1000 / SAMPLE_RATE
    return [float(border) for pair in pairwise(ends) for border in pair]
