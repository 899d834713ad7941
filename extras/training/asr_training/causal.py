"""The network with a causal encoder: no audio token depends on audio after its own 80 ms.

Attention reaches back over a bounded number of tokens and never ahead. Frames are clamped relative to the loudest bin
so far. A token exists once all its frames do. The convolutions are unchanged: with strides of two, each looks one of
its own steps ahead, which together stays within the 80 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr_training.acoustics import FRAMES_PER_PIECE, Features, log_mel
from asr_training.network import WINDOW_TOKENS, Network, layer_output
from asr_training.speech import Wave

# The key in the encoder's configuration that marks such a checkpoint; its value is how many tokens attention sees.
LEFT_TOKENS_KEY = "causal_left_tokens"
FRAMES_PER_TOKEN, TOKENS_PER_PIECE = 8, 13


class CausalNetwork(Network):
    """A checkpoint whose encoder hears only the past."""

    @property
    def left_tokens(self) -> int:
        """How many tokens a token attends to, including itself; a whole window before the checkpoint is tuned."""
        return _left_tokens(self) or WINDOW_TOKENS

    def features(self, clips: Sequence[Wave]) -> Features:
        """Log-mel features of `clips`."""
        filters = torch.tensor(self.processor.feature_extractor.mel_filters, dtype=torch.float32)
        return log_mel(clips, filters, causal=True)

    def tokens(self, frames: int) -> int:
        """Return the number of audio tokens of a clip of `frames`. A token counts only with all its frames."""
        pieces, rest = divmod(frames, FRAMES_PER_PIECE)
        return pieces * TOKENS_PER_PIECE + rest // FRAMES_PER_TOKEN

    def attend(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Apply the encoder layers to (batch, tokens, d_model). Padding is last, and so unseen by valid tokens."""
        places = torch.arange(states.shape[1])
        back = places[:, None] - places
        keys = (back >= 0) & (back < self.left_tokens)
        for layer in self.model.thinker.audio_tower.layers:
            states = layer_output(layer, states, keys)
        return states

    def save(self, folder: Path) -> None:
        """Write the checkpoint with the key that marks it as causal."""
        setattr(self.model.config.thinker_config.audio_config, LEFT_TOKENS_KEY, self.left_tokens)
        super().save(folder)


def load(folder: Path) -> Network:
    """The checkpoint with the encoder that it is tuned for."""
    network = Network.load(folder)
    return CausalNetwork(network.model, network.processor) if _left_tokens(network) else network


def _left_tokens(network: Network) -> int:
    return int(getattr(network.model.config.thinker_config.audio_config, LEFT_TOKENS_KEY, 0))
