"""The interface between an aligner and the library that runs its model: rows in, scores of time slots out."""

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
    after: tuple[int, ...]  # ids after the audio: each word, then two stamps


class AlignerModel(Protocol):
    """The weights of an aligner and the code that runs them."""

    slots: int  # how many time slots the head knows

    @property
    def encoder(self) -> Encoder:
        """Return the encoder, which decides on which device log-mel frames are made."""

    def scores(self, rows: Sequence[AlignerRow], stamp: int) -> Iterator[list[Scores] | None]:
        """Yield None after each part of the work except the last, then for each row the scores of the time slots at
        every `stamp`, (2 x words, slots), not normalised."""

    def report_to(self, on_progress: Callable[[], None]) -> None:
        """Call `on_progress` inside passes that may take long, from now on."""
