"""The audio encoder with true 8 s windows under every attention backend, windows of many clips in one batch.

The SDK's own forward pass leaves its windows to flash-attention: under SDPA and eager every token attends over the
whole clip, which is not what the model was trained on. Here each window is a row of a batch, so that no mask can be
forgotten, the cost is linear in the length, and clips share the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F


class WindowedEncoder:
    """Drives the modules of the SDK's audio tower.

    A piece is what the convolutions see (100 frames, padded with zeros on its own); a window is what attention sees
    (800 frames, 104 tokens). Positions restart with every piece.
    """

    def __init__(self, tower: Any) -> None:
        self._tower = tower
        self._piece_frames: int = tower.n_window * 2
        self.window_frames: int = tower.n_window_infer
        self.window_tokens = conv_tokens(self._piece_frames) * (self.window_frames // self._piece_frames)

    def tokens(self, frames: int) -> int:
        """How many tokens a clip of that many mel frames becomes."""
        whole, rest = divmod(frames, self._piece_frames)
        return whole * conv_tokens(self._piece_frames) + conv_tokens(rest)

    def __call__(self, mels: Sequence[torch.Tensor], continued: Sequence[bool] | None = None) -> list[torch.Tensor]:
        """Clips of log-mel (128, T) to embeddings (tokens(T), output_dim), one for each, on the tower's device.

        `continued` says of each clip whether it is the rest of a longer one, from the start of a window on.
        """
        weight = self._tower.conv_out.weight
        rests = continued or [False] * len(mels)
        clips = [self._convolve(m.to(weight.device, weight.dtype), rest) for m, rest in zip(mels, rests, strict=True)]
        windows = [window for clip in clips for window in clip.split(self.window_tokens)]
        encoded = self._attend(windows)
        flat = torch.cat([row[: len(window)] for row, window in zip(encoded, windows, strict=True)])
        return list(flat.split([len(clip) for clip in clips]))

    def _convolve(self, mel: torch.Tensor, rest: bool) -> torch.Tensor:
        """One clip (128, T) to (tokens(T), d_model), position embeddings added."""
        tower, frames = self._tower, mel.shape[1]
        # A clip shorter than a piece keeps its own width, as in the SDK: padding would change its last tokens.
        width = self._piece_frames if rest else min(self._piece_frames, frames)
        padded = F.pad(mel, (0, -frames % width))
        pieces = padded.view(mel.shape[0], -1, width).transpose(0, 1).unsqueeze(1)
        x = torch.cat([self._conv_stack(chunk) for chunk in pieces.split(tower.conv_chunksize)])
        count, channels, bins, tokens = x.shape
        x = tower.conv_out(x.permute(0, 3, 1, 2).reshape(count, tokens, channels * bins))
        x = x + tower.positional_embedding.positional_embedding[:tokens].to(x.dtype)
        return x.reshape(count * tokens, -1)[: self.tokens(frames)]

    def _conv_stack(self, pieces: torch.Tensor) -> torch.Tensor:
        tower = self._tower
        return F.gelu(tower.conv2d3(F.gelu(tower.conv2d2(F.gelu(tower.conv2d1(pieces))))))

    def _attend(self, windows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Windows (n_i, d_model), n_i <= 104, to (W, max n_i, output_dim)."""
        tower = self._tower
        lengths = torch.tensor([len(w) for w in windows], device=windows[0].device)
        x = torch.nn.utils.rnn.pad_sequence(list(windows), batch_first=True)
        mask = None
        if int(lengths.min()) < x.shape[1]:
            mask = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, None, None, :]
        for layer in tower.layers:
            x = _layer(layer, x, mask)
        out: torch.Tensor = tower.proj2(tower.act(tower.proj1(tower.ln_post(x))))
        return out


def _layer(layer: Any, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One pre-norm transformer layer over (W, n, d); `mask` True where a key may be seen."""
    attention = layer.self_attn
    h = layer.self_attn_layer_norm(x)
    q, k, v = (_heads(p(h), attention.num_heads) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
    h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=attention.scaling)
    x = x + attention.out_proj(h.transpose(1, 2).flatten(2))
    x = x + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(x))))
    if x.dtype == torch.float16:  # as in the SDK: deep layers of the released encoders overflow half precision
        limit = torch.finfo(x.dtype).max - 1000
        x = x.clamp(-limit, limit)
    return x


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(W, n, heads * e) to (W, heads, n, e)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def conv_tokens(frames: int) -> int:
    """Length after the three stride-2 convolutions (kernel 3, padding 1): ceil(frames / 8)."""
    return -(-frames // 8)
