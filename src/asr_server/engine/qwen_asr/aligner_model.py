"""The border between an aligner and the library that computes it: rows in, scores of time slots out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from asr_server.engine.qwen_asr.frontend import Frames
    from asr_server.engine.qwen_asr.windows import Encoder

# How long a part of the work may take: live work waits for it.
PART_S = 0.2

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AlignerRow:
    """An item as the model reads it."""

    mel: Frames  # features (128, T)
    words: tuple[str, ...]
    before: tuple[int, ...]  # ids before the audio
    after: tuple[int, ...]  # ids after it: each word with two stamps after it


class AlignerModel(Protocol):
    """The weights of an aligner with what computes with them."""

    slots: int  # how many time slots the head knows

    @property
    def encoder(self) -> Encoder:
        """Return the encoder, which says where log-mel frames are made."""

    def scores(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """Yield None after each part of the work but the last, then the scores of the time slots at every `stamp` of
        each row, (2 x words, slots), not normalised."""

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside of passes that may take long, from now on."""
