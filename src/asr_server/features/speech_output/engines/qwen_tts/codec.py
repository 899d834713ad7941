"""Frames to samples as a stream: each layer keeps what it needs of the frames before, so nothing is computed twice.

All layers of the SDK's `Qwen3TTSTokenizerV2Decoder` look back only. The SDK decodes long sentences in chunks of 300
frames that begin 25 frames early; its attention sees 72 frames in each of eight layers, so that is an approximation.
What comes from here are the samples of one pass over the whole sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional as F

# Behind the transformer the convolutions see ten frames back, with the kernels and rates of the SDK's defaults.
_SAMPLE_FRAMES = 16


@dataclass(slots=True, eq=False)
class StreamState:
    """The state of the layers after a stream's frames."""

    frames: int = 0  # frames so far
    # of each layer of attention the last keys and values (2, heads, window - 1, dim)
    attention: list[torch.Tensor] = field(default_factory=list)
    # of each convolution the last columns that it has read (channels, columns)
    columns: list[torch.Tensor] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(part.nbytes for part in (*self.attention, *self.columns))


class _Pass:
    """The states of the streams of a pass, before and after it, read and made in the order of the layers."""

    def __init__(self, states: Sequence[StreamState], frames: int) -> None:
        self._states, self._frames = states, frames
        self._attention: list[torch.Tensor] = []
        self._columns: list[torch.Tensor] = []

    def extended(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Return `x` (n, channels, columns) after the last `count` columns that the layer has read; zeros at first."""
        if count == 0:
            return x
        at = len(self._columns)
        before = [state.columns[at] if state.frames else x.new_zeros(x.shape[1], count) for state in self._states]
        x = torch.cat([torch.stack(before), x], dim=-1)
        self._columns.append(x[..., -count:].clone())
        return x

    def remembered(self, kv: torch.Tensor, count: int) -> torch.Tensor:
        """Return `kv` (2, n, heads, frames, dim) after that of the last `count` frames; zeros at first."""
        at, fresh = len(self._attention), kv.new_zeros(2, *kv.shape[2:3], count, kv.shape[-1])
        before = [state.attention[at] if state.frames else fresh for state in self._states]
        kv = torch.cat([torch.stack(before, dim=1), kv], dim=-2)
        self._attention.append(kv[..., -count:, :].clone())
        return kv

    @property
    def begins(self) -> list[int]:
        """Return how many frames each stream has had."""
        return [state.frames for state in self._states]

    def states(self) -> list[StreamState]:
        """Return the states after the pass."""
        return [
            StreamState(
                state.frames + self._frames,
                [layer[:, number] for layer in self._attention],
                [layer[number] for layer in self._columns],
            )
            for number, state in enumerate(self._states)
        ]


class StreamingDecoder:
    """Decodes with the modules of `decoder`, the SDK's, and leaves them as they are."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._window = int(decoder.config.sliding_window)
        self.frame_samples = int(decoder.total_upsample)

    def __call__(self, codes: torch.Tensor, states: Sequence[StreamState]) -> tuple[torch.Tensor, list[StreamState]]:
        """Turn the next frames of some streams, codes (n, frames, codebooks), into samples (n, frames *
        `frame_samples`) in [-1, 1], and return the states after them. The states given stay as they are."""
        run = _Pass(states, codes.shape[1])
        return self._samples(self._latents(codes, run), run), run.states()

    def primed(self, codes: torch.Tensor) -> StreamState:
        """Return the state of a stream behind frames (frames, codebooks) whose samples nobody wants."""
        run = _Pass([StreamState()], len(codes))
        latents = self._latents(codes[None], run)
        self._samples(latents[..., -_SAMPLE_FRAMES:], run)
        (state,) = run.states()
        return state

    def _latents(self, codes: torch.Tensor, run: _Pass) -> torch.Tensor:
        """Codes (n, frames, codebooks) to (n, d, frames)."""
        x = _convolved(self._decoder.pre_conv, self._decoder.quantizer.decode(codes.transpose(1, 2)), run)
        return self._transformed(x.transpose(1, 2), run).transpose(1, 2)

    def _samples(self, x: torch.Tensor, run: _Pass) -> torch.Tensor:
        """Latents (n, d, frames) to samples (n, frames * `frame_samples`)."""
        for up, block in self._decoder.upsample:
            x = _mixed(block, _upsampled(up, x, run), run)
        first, *blocks, activation, last = self._decoder.decoder
        x = _convolved(first, x, run)
        for block in blocks:
            begin, up, *units = block.block
            x = _upsampled(up, begin(x), run)
            for unit in units:
                x = x + _convolved(unit.conv2, unit.act2(_convolved(unit.conv1, unit.act1(x), run)), run)
        return _convolved(last, activation(x), run).squeeze(1).clamp(-1, 1)

    def _transformed(self, x: torch.Tensor, run: _Pass) -> torch.Tensor:
        """Return the decoder's transformer, (n, frames, d) to (n, frames, d)."""
        model, frames, before = self._decoder.pre_transformer, x.shape[1], self._window - 1
        x = model.input_proj(x)
        begins = torch.tensor(run.begins, device=x.device)[:, None]
        queries = torch.arange(frames, device=x.device)
        cos, sin = (part[:, None] for part in model.rotary_emb(x, begins + queries))
        # The first keys are those of frames before this pass, as far as there were any.
        keys = torch.arange(-before, frames, device=x.device)
        distance = queries[:, None] - keys
        visible = ((distance >= 0) & (distance <= before)) & (keys >= -begins[:, :, None])
        for layer in model.layers:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            q, k, v = (
                project(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            kv = run.remembered(torch.stack([_rotated(k, cos, sin), v]), before)
            kv = kv.repeat_interleave(attention.num_key_value_groups, dim=2)
            out = F.scaled_dot_product_attention(_rotated(q, cos, sin), kv[0], kv[1], attn_mask=visible[:, None])
            x = x + layer.self_attn_layer_scale(attention.o_proj(out.transpose(1, 2).flatten(2)))
            x = x + layer.mlp_layer_scale(layer.mlp(layer.post_attention_layernorm(x)))
        return model.output_proj(model.norm(x))


def _convolved(layer: Any, x: torch.Tensor, run: _Pass) -> torch.Tensor:
    found: torch.Tensor = layer.conv(run.extended(x, layer.padding))
    return found


def _upsampled(layer: Any, x: torch.Tensor, run: _Pass) -> torch.Tensor:
    """A transposed convolution: where its kernel is longer than its stride, outputs overlap those of columns before."""
    stride, width = layer.conv.stride[0], layer.conv.kernel_size[0]
    before = -(-width // stride) - 1
    columns = x.shape[-1]
    found: torch.Tensor = layer.conv(run.extended(x, before))
    return found[..., before * stride : (before + columns) * stride]


def _mixed(block: Any, x: torch.Tensor, run: _Pass) -> torch.Tensor:
    """A block of ConvNeXt."""
    mixed = block.norm(_convolved(block.dwconv, x, run).transpose(1, 2))
    mixed = block.gamma * block.pwconv2(block.act(block.pwconv1(mixed)))
    return x + mixed.transpose(1, 2)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-other, one], dim=-1) * sin
