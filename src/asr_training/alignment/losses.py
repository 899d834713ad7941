"""What the aligner is taught by: the slots of its stamps, the slots of the audio itself, guided attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from asr_server.core.audio import SAMPLE_RATE
from asr_training.alignment.lessons import TOKENS_PER_S, Lessons, soft_loss
from asr_training.alignment.network import LAYERS, AlignerNetwork, Row
from asr_training.alignment.words import stamp_slots
from asr_training.guidance import Guide, Mark, guidance, watched
from asr_training.speech import SpokenWord
from asr_training.utterances import Utterance

MIDDLE = len(LAYERS) // 2
# First the word as a whole is found, in the layer where the demo found the next word, then its two borders.
WORD_GUIDES = (Guide(MIDDLE, 0), Guide(MIDDLE, 1))
BORDER_GUIDES = (Guide(MIDDLE + 1, 0), Guide(MIDDLE + 1, 2))


@dataclass(frozen=True)
class Losses:
    """Mean losses, all scalars: of the stamps, of the lessons of the audio, of the guided heads."""

    stamps: Tensor
    places: Tensor
    words: Tensor
    borders: Tensor
    guides: Tensor

    @property
    def whole(self) -> Tensor:
        """What is minimised."""
        return self.stamps + 0.2 * self.places + 0.5 * self.words + 0.25 * self.borders + 0.3 * self.guides

    def __str__(self) -> str:
        return " ".join(f"{field.name} {getattr(self, field.name):.3f}" for field in fields(self))


def aligner_losses(
    aligner: AlignerNetwork, items: Sequence[Utterance], rows: Sequence[Row], lessons: Lessons
) -> Losses:
    """Losses of one batch."""
    with watched(aligner.network, (*WORD_GUIDES, *BORDER_GUIDES)) as seen:
        hidden = aligner.states(rows)
    stamps = torch.cat([states[list(row.stamps)] for states, row in zip(hidden, rows, strict=True)])
    spoken, middle = [item.spoken for item in items], seen[MIDDLE].states
    wanted = torch.tensor([slot for words in spoken for slot in stamp_slots(words)])
    words = [list(_word_marks(told, row)) for told, row in zip(spoken, rows, strict=True)]
    borders = [list(_border_marks(told, row)) for told, row in zip(spoken, rows, strict=True)]
    guided = [guidance(aligner.network, guide, seen[guide.layer], words) for guide in WORD_GUIDES]
    guided += [guidance(aligner.network, guide, seen[guide.layer], borders) for guide in BORDER_GUIDES]
    return Losses(
        soft_loss(aligner.thinker.lm_head(stamps)[wanted >= 0], wanted[wanted >= 0]),
        lessons.places(middle, rows),
        lessons.words(middle, rows, spoken),
        lessons.borders(middle, rows, spoken),
        torch.stack(guided).mean(),
    )


def _word_marks(words: Sequence[SpokenWord], row: Row) -> Iterator[Mark]:
    for number, word in enumerate(words):
        first, last = _token(word.start, row), _token(word.end, row)
        for stamp in row.stamps[2 * number : 2 * number + 2]:
            yield Mark(stamp, first, last + 1)


def _border_marks(words: Sequence[SpokenWord], row: Row) -> Iterator[Mark]:
    for number, word in enumerate(words):
        for stamp, sample in zip(row.stamps[2 * number : 2 * number + 2], (word.start, word.end), strict=True):
            token = _token(sample, row)
            yield Mark(stamp, max(row.audio_start, token - 1), token + 1)


def _token(sample: int, row: Row) -> int:
    """The place in the sequence of the audio token in which a sample lies."""
    return row.audio_start + min(int(sample * TOKENS_PER_S / SAMPLE_RATE), row.audio_tokens - 1)
