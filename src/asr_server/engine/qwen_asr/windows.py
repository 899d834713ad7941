"""Log-mel frames in windows of at most 8 s: what every encoder takes, whatever runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from asr_server.engine.torch.passes import Capture


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A window of at most 8 s of a clip, from its start on."""

    mel: torch.Tensor  # log-mel frames (128, T)
    # It is the whole clip. A clip that is shorter than a piece is convolved in its own width, as in the SDK.
    whole: bool
    tokens: int  # how many it becomes


class Encoder(ABC):
    """The windows of `tower`, the SDK's audio tower: how clips are divided, and how many tokens they become.

    A piece is what the convolutions see (100 frames, padded with zeros on its own); a window is what attention sees
    (800 frames, 104 tokens). `on_layer` is called inside of passes that may take long. `device`: where log-mel frames
    are to be made.
    """

    def __init__(self, tower: Any) -> None:
        self.piece_frames: int = tower.n_window * 2
        self.window_frames: int = tower.n_window_infer
        self.piece_tokens = conv_tokens(self.piece_frames)
        self.window_tokens = self.piece_tokens * (self.window_frames // self.piece_frames)
        self.on_layer: Callable[[], None] = lambda: None
        self.device = torch.device("cpu")

    @abstractmethod
    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Embeddings (tokens, output_dim) of each window, on the device and in the format of the language model."""

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes, if this encoder can, and return how many. `on_each` is called before each."""
        return 0

    def tokens(self, frames: int) -> int:
        """Return how many tokens a clip of that many mel frames becomes."""
        whole, rest = divmod(frames, self.piece_frames)
        return whole * self.piece_tokens + conv_tokens(rest)

    def windows(self, mel: torch.Tensor, *, continued: bool = False) -> list[Window]:
        """Return the windows of log-mel frames (128, T); `continued` if they are the rest of a longer clip."""
        parts = mel.split(self.window_frames, dim=1)
        return [Window(part, not continued and len(parts) == 1, self.tokens(part.shape[1])) for part in parts]


def conv_tokens(frames: int) -> int:
    """Length after the three stride-2 convolutions (kernel 3, padding 1): ceil(frames / 8)."""
    return -(-frames // 8)
