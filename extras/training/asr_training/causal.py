"""The network with a causal encoder: no audio token depends on what comes behind its own 80 ms.

Attention reaches back over a bounded number of tokens and not ahead, frames are clamped relative to the loudest one so
far, and a token exists once its frames are there. The convolutions stay as they are: with strides of two each looks one
of its own steps ahead, which together is within the 80 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr_training.acoustics import FRAMES_PER_PIECE, Features, log_mel
from asr_training.network import WINDOW_TOKENS, Network, layer_output
from asr_training.speech import Wave

# The key of the encoder's configuration that tells such a checkpoint from others: how many tokens attention sees.
LEFT_TOKENS_KEY = "causal_left_tokens"
FRAMES_PER_TOKEN, TOKENS_PER_PIECE = 8, 13


class CausalNetwork(Network):
    """A checkpoint whose encoder hears the past alone."""

    @property
    def left_tokens(self) -> int:
        """Tokens that a token attends to, itself included; of a checkpoint that is not tuned yet, a window's."""
        return _left_tokens(self) or WINDOW_TOKENS

    def features(self, clips: Sequence[Wave]) -> Features:
        """Log-mel features of `clips`."""
        filters = torch.tensor(self.processor.feature_extractor.mel_filters, dtype=torch.float32)
        return log_mel(clips, filters, causal=True)

    def tokens(self, frames: int) -> int:
        """Audio tokens of a clip of `frames`: those of which all frames are there."""
        pieces, rest = divmod(frames, FRAMES_PER_PIECE)
        return pieces * TOKENS_PER_PIECE + rest // FRAMES_PER_TOKEN

    def attend(self, states: Tensor, lengths: Tensor) -> Tensor:
        """The encoder layers over (batch, tokens, d_model); what is not valid is behind what is, and so unseen."""
        places = torch.arange(states.shape[1])
        back = places[:, None] - places
        keys = (back >= 0) & (back < self.left_tokens)
        for layer in self.model.thinker.audio_tower.layers:
            states = layer_output(layer, states, keys)
        return states

    def save(self, folder: Path) -> None:
        """Writes the checkpoint with the key that names its kind."""
        setattr(self.model.config.thinker_config.audio_config, LEFT_TOKENS_KEY, self.left_tokens)
        super().save(folder)


def load(folder: Path) -> Network:
    """The checkpoint with the encoder that it is tuned for."""
    network = Network.load(folder)
    return CausalNetwork(network.model, network.processor) if _left_tokens(network) else network


def _left_tokens(network: Network) -> int:
    return int(getattr(network.model.config.thinker_config.audio_config, LEFT_TOKENS_KEY, 0))
