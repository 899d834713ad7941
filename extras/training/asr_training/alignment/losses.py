"""The losses of the aligner: slots of the timestamps, auxiliary losses of the audio, guided attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.auxiliary_losses import TOKENS_PER_S, AuxiliaryHeads, soft_loss
from asr_training.alignment.network import LAYERS, AlignerNetwork, Row
from asr_training.alignment.words import timestamp_slots
from asr_training.guided_attention import GuidedHead, GuidedToken, guided_attention_loss, record_attention_inputs
from asr_training.speech import SpokenWord
from asr_training.utterances import Utterance

MIDDLE = len(LAYERS) // 2
# Heads of the middle layer attend to the word, as in the demo recogniser; heads of the next layer to its boundaries.
WORD_HEADS = (GuidedHead(MIDDLE, 0), GuidedHead(MIDDLE, 1))
BOUNDARY_HEADS = (GuidedHead(MIDDLE + 1, 0), GuidedHead(MIDDLE + 1, 2))


@dataclass(frozen=True)
class Losses:
    """Mean losses, all scalars: of the timestamps, of the auxiliary heads, of the guided heads."""

    timestamps: Tensor
    places: Tensor
    words: Tensor
    boundaries: Tensor
    guides: Tensor

    @property
    def total(self) -> Tensor:
        return self.timestamps + 0.2 * self.places + 0.5 * self.words + 0.25 * self.boundaries + 0.3 * self.guides

    def __str__(self) -> str:
        return " ".join(f"{field.name} {getattr(self, field.name):.3f}" for field in fields(self))


def aligner_losses(
    aligner: AlignerNetwork, items: Sequence[Utterance], rows: Sequence[Row], auxiliary: AuxiliaryHeads
) -> Losses:
    """Losses of one batch."""
    with record_attention_inputs(aligner.network, (*WORD_HEADS, *BOUNDARY_HEADS)) as recorded:
        hidden = aligner.states(rows)
    timestamps = torch.cat([states[list(row.timestamps)] for states, row in zip(hidden, rows, strict=True)])
    spoken, middle = [item.spoken for item in items], recorded[MIDDLE].states
    wanted = torch.tensor([slot for words in spoken for slot in timestamp_slots(words)])
    words = [list(_word_tokens(clip_words, row)) for clip_words, row in zip(spoken, rows, strict=True)]
    boundaries = [list(_boundary_tokens(clip_words, row)) for clip_words, row in zip(spoken, rows, strict=True)]
    guided = [guided_attention_loss(aligner.network, head, recorded[head.layer], words) for head in WORD_HEADS]
    guided += [
        guided_attention_loss(aligner.network, head, recorded[head.layer], boundaries) for head in BOUNDARY_HEADS
    ]
    return Losses(
        soft_loss(aligner.thinker.lm_head(timestamps)[wanted >= 0], wanted[wanted >= 0]),
        auxiliary.places(middle, rows),
        auxiliary.words(middle, rows, spoken),
        auxiliary.boundaries(middle, rows, spoken),
        torch.stack(guided).mean(),
    )


def _word_tokens(words: Sequence[SpokenWord], row: Row) -> Iterator[GuidedToken]:
    for number, word in enumerate(words):
        first, last = _token(word.start, row), _token(word.end, row)
        for timestamp in row.timestamps[2 * number : 2 * number + 2]:
            yield GuidedToken(timestamp, first, last + 1)


def _boundary_tokens(words: Sequence[SpokenWord], row: Row) -> Iterator[GuidedToken]:
    for number, word in enumerate(words):
        for timestamp, sample in zip(row.timestamps[2 * number : 2 * number + 2], (word.start, word.end), strict=True):
            token = _token(sample, row)
            yield GuidedToken(timestamp, max(row.audio_start, token - 1), token + 1)


def _token(sample: int, row: Row) -> int:
    """The place in the sequence of the audio token in which a sample lies."""
    return row.audio_start + min(int(sample * TOKENS_PER_S / SAMPLE_RATE), row.audio_tokens - 1)
