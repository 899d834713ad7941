"""The audio encoder with true 8 s windows under every attention backend, windows of many clips in one batch.

The SDK's own forward pass leaves its windows to flash-attention: under SDPA and eager every token attends over the
whole clip, which is not what the model was trained on. Here each window is a row of a batch, so that no mask can be
forgotten, the cost is linear in the length, and clips share the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from asr_server.engine.qwen_asr.frontend import LEAST_POWER, LogMel, MelSettings
from asr_server.engine.qwen_asr.windows import Encoder, Window
from asr_server.engine.torch import memory
from asr_server.engine.torch.linear import Linear, MakeLinear, plain, stacked
from asr_server.engine.torch.passes import Capture, Computed

# Pieces per convolution, padded to a power of two. On a CPU, few enough that the result of one convolution stays in the
# caches for the next. On a GPU, the first convolution's result takes three times 3 MB for each piece of a released
# encoder in 16 bits.
_PIECES = {"cpu": 16, "cuda": 32}


# Numbers of windows whose passes are recorded: three recordings of 30 s, and fewer.
RECORDED_WINDOWS = (12, 8, 4, 2, 1)
_BINS = 128


@dataclass(frozen=True, slots=True, eq=False)
class _RecordedWindows:
    """A recorded pass of some windows; see `WindowedEncoder._padded`."""

    mel: torch.Tensor
    lengths: torch.Tensor
    replay: Callable[[], None]
    computed: Computed


class GpuLogMel(LogMel):
    """Log-mel frames that are made, and stay, on a GPU."""

    def __init__(self, settings: MelSettings, device: torch.device) -> None:
        super().__init__(settings)
        self._device = device
        self._filters, self._window = (torch.from_numpy(own).to(device) for own in (self.filters, self.window))

    def log10(self, signal: NDArray[np.float32], frames: int) -> torch.Tensor:
        """See `LogMel`."""
        given = memory.upload(torch.from_numpy(np.ascontiguousarray(signal)), self._device)
        # Pad to whole seconds: cuFFT makes a plan for each new number of frames, and keeps the plans and their memory.
        given = F.pad(given, (0, self.n_fft + self.hop * (-(-frames // 100) * 100 - 1) - len(given)))
        spectrum = torch.stft(given, self.n_fft, self.hop, window=self._window, center=False, return_complex=True)
        return torch.clamp(self._filters @ (spectrum[:, :frames].abs() ** 2), min=LEAST_POWER).log10()

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts), dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of a transformer layer."""

    norm: nn.LayerNorm
    qkv: Linear  # queries, keys and values in one product
    scale: float  # of the queries
    heads: int
    out: Linear
    mlp_norm: nn.LayerNorm
    up: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Linear


class WindowedEncoder(Encoder):
    """Takes the layers out of `tower`, the SDK's audio tower, which cannot be used afterwards.

    Positions restart with every piece. `on_layer` is called before each layer and each group of pieces, since on a CPU
    a pass may take long.
    """

    def __init__(self, tower: Any, make_linear: MakeLinear = plain) -> None:
        super().__init__(tower.n_window, tower.n_window_infer)
        self.convolutions = (tower.conv2d1, tower.conv2d2, tower.conv2d3)
        self.device = tower.conv2d1.weight.device
        if self.device.type == "cuda":
            # Store the channels of a place side by side, as the matrix units of GPUs read them. Otherwise cuDNN would
            # transpose before and after each convolution.
            for convolution in self.convolutions:
                convolution.to(memory_format=torch.channels_last)
        self._conv_out = make_linear(tower.conv_out.weight, tower.conv_out.bias)
        self._positions: torch.Tensor = tower.positional_embedding.positional_embedding
        self._norm = tower.ln_post
        self._activation = tower.act
        self._projections = [make_linear(part.weight, part.bias) for part in (tower.proj1, tower.proj2)]
        self._recorded: dict[int, _RecordedWindows] = {}
        self._layers: list[Layer] = []
        for number, layer in enumerate(tower.layers):
            self._layers.append(_fused(layer, make_linear))
            tower.layers[number] = nn.Identity()
        tower.conv_out = tower.proj1 = tower.proj2 = nn.Identity()

    def log_mel(self, settings: MelSettings) -> LogMel:
        """See `Encoder`. A CPU core takes 15 ms for 30 s of audio, and a GPU would wait for it."""
        return LogMel(settings) if self.device.type == "cpu" else GpuLogMel(settings, self.device)

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record the passes for some numbers of windows, and return how many. `on_each` is called before each."""
        for count in RECORDED_WINDOWS:
            on_each()
            mel = torch.zeros(count, _BINS, self.window_frames, device=self.device)
            lengths = torch.full((2, count), self.window_frames, device=self.device)
            self._recorded[count] = _RecordedWindows(mel, lengths, *capture(partial(self._padded, mel, lengths)))
        return len(self._recorded)

    def __call__(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        """Embeddings (tokens, output_dim) of each window, on the device of the weights."""
        if not self._recorded:
            return self._run(windows)
        most = max(self._recorded)
        groups = [windows[begin : begin + most] for begin in range(0, len(windows), most)]
        return [row for group in groups for row in self._replayed(group)]

    def _replayed(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        recorded = self._recorded[min(count for count in self._recorded if count >= len(windows))]
        recorded.mel.zero_()
        lengths = [[self.window_frames] * len(recorded.mel) for _ in range(2)]
        for number, window in enumerate(windows):
            frames = window.mel.shape[1]
            recorded.mel[number, :, :frames] = window.mel
            lengths[0][number] = frames
            if window.whole:
                lengths[1][number] = frames
        # A copy from memory that is not pinned would wait for queued work.
        recorded.lengths.copy_(memory.pinned(torch.tensor(lengths), self.device), non_blocking=True)
        recorded.replay()
        # Copy the result, since the next pass overwrites it.
        encoded = recorded.computed[0].clone()
        return [row[: window.tokens] for row, window in zip(encoded, windows, strict=False)]

    def _padded(self, mel: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor]:
        """Frames (W, 128, 800) of windows to embeddings (W, 104, output_dim). `lengths` (2, W): the frames of each
        window, and how many frames of its first piece the convolutions may see; a larger number means all."""
        count, size = len(mel), self.piece_frames
        pieces = mel.to(self.convolutions[0].weight.dtype).unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
        ends = lengths[1].clamp(max=size).repeat_interleave(self.window_frames // size)
        groups = zip(*(part.split(_PIECES[self.device.type]) for part in (pieces.unsqueeze(1), ends)), strict=True)
        x = torch.cat([self.piece_states(self.images(*group)) for group in groups])
        x = x.unflatten(0, (count, -1)).flatten(1, 2)
        tokens = lengths[0] // size * self.piece_tokens + (lengths[0] % size + 7) // 8
        return (self.embeddings(x, _mask(x, tokens)),)

    def _run(self, windows: Sequence[Window]) -> list[torch.Tensor]:
        pieces, widths = self._pieces(windows)
        most = _PIECES[self.device.type]
        groups = [(group, widths[n * most :]) for n, group in enumerate(pieces.split(most))]
        x = torch.cat([self._convolve(group, own[: len(group)]) for group, own in groups])
        per_window = x.split([-(-window.mel.shape[1] // self.piece_frames) for window in windows])
        states = [own.flatten(0, 1)[: window.tokens] for own, window in zip(per_window, windows, strict=True)]
        encoded = self._attend(states)
        return [row[: window.tokens] for row, window in zip(encoded, windows, strict=True)]

    def _pieces(self, windows: Sequence[Window]) -> tuple[torch.Tensor, list[int]]:
        """Return all pieces (n, 1, 128, 100), and how many frames of each the convolutions may see."""
        weight, size = self.convolutions[0].weight, self.piece_frames
        widths = list[int]()
        for window in windows:
            frames = window.mel.shape[1]
            widths += [min(size, frames) if window.whole else size] * -(-frames // size)
        # Convert all windows at once: on a GPU each call costs as much as a layer. Most windows need no padding.
        padded = torch.cat([F.pad(torch.as_tensor(w.mel), (0, -w.mel.shape[1] % size)) for w in windows], dim=1)
        pieces = padded.to(weight.device, weight.dtype).unflatten(1, (-1, size)).transpose(0, 1).unsqueeze(1)
        return pieces, widths

    def _convolve(self, pieces: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Pieces (n, 1, 128, 100) to (n, 13, d_model)."""
        self.on_layer()
        count = len(pieces)
        # Pad to few different shapes: kernels are chosen anew for each shape.
        x = F.pad(pieces, (0, 0, 0, 0, 0, 0, 0, (1 << (count - 1).bit_length()) - count))
        ends = None
        if min(widths) < self.piece_frames:
            ends = memory.upload(torch.tensor([*widths, *[0] * (len(x) - count)]), x.device)
        return self.piece_states(self.images(x, ends)[:count])

    def images(self, x: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
        """Pieces (n, 1, 128, 100) to the result of the convolutions, (n, channels, 16, 13).

        `ends` (n,): frames of each piece that exist, None if all do.
        """
        for convolution in self.convolutions:
            x = F.gelu(convolution(x))
            if ends is not None:
                # After the end of a clip in its own width, the next convolution sees zeros, as it would at the edge.
                ends = (ends + 1) // 2
                x = x * (torch.arange(x.shape[-1], device=x.device) < ends[:, None])[:, None, None].to(x.dtype)
        return x

    def piece_states(self, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Convolved pieces (n, channels, 16, 13) to states (n, 13, d_model) with their positions, from `first` on."""
        x = self._conv_out(x.permute(0, 3, 1, 2).flatten(2))
        return x + self._positions[first : first + x.shape[1]].to(x.dtype)

    def _attend(self, windows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Windows (n_i, d_model), n_i <= 104, to (W, max n_i, output_dim)."""
        lengths = [len(window) for window in windows]
        x = torch.nn.utils.rnn.pad_sequence(list(windows), batch_first=True)
        mask = None
        if min(lengths) < x.shape[1]:
            mask = _mask(x, memory.upload(torch.tensor(lengths), x.device))
        return self.embeddings(x, mask)

    def embeddings(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """States (W, n, d_model) to embeddings (W, n, output_dim). `mask`: as in
        `torch.nn.functional.scaled_dot_product_attention`."""
        for layer in self._layers:
            self.on_layer()
            q, k, v = attention_inputs(layer, x)
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=layer.scale)
            x = layer_output(layer, x, h)
        return self.project(x)

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Turn the last layer's states (W, n, d_model) into embeddings (W, n, output_dim)."""
        first, second = self._projections
        return second(self._activation(first(self._norm(x))))


def _mask(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the mask to add to the scores of states (W, n, d), of which the first `lengths` (W,) exist. Each layer
    would convert a boolean mask anew."""
    hidden = (torch.arange(x.shape[1], device=x.device) >= lengths[:, None])[:, None, None, :]
    return torch.zeros_like(hidden, dtype=x.dtype).masked_fill_(hidden, -torch.inf)


def attention_inputs(layer: Layer, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values (W, heads, n, dim) of a pre-norm layer over (W, n, d)."""
    q, k, v = layer.qkv(layer.norm(x)).unflatten(-1, (3, layer.heads, -1)).transpose(1, 3).unbind(2)
    return q, k, v


def layer_output(layer: Layer, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return the layer's output for `x` (W, n, d); `h` (W, heads, n, dim) is the result of its attention."""
    x = x + layer.out(h.transpose(1, 2).flatten(2))
    x = x + layer.down(layer.activation(layer.up(layer.mlp_norm(x))))
    if x.dtype == torch.float16:  # as in the SDK: deep layers of the released encoders overflow half precision
        limit = torch.finfo(x.dtype).max - 1000
        x = x.clamp(-limit, limit)
    return x


def _fused(layer: Any, make_linear: MakeLinear) -> Layer:
    attention = layer.self_attn
    return Layer(
        norm=layer.self_attn_layer_norm,
        qkv=make_linear(*stacked(attention.q_proj, attention.k_proj, attention.v_proj)),
        scale=attention.scaling,
        heads=attention.num_heads,
        out=make_linear(attention.out_proj.weight, attention.out_proj.bias),
        mlp_norm=layer.final_layer_norm,
        up=make_linear(layer.fc1.weight, layer.fc1.bias),
        activation=layer.activation_fn,
        down=make_linear(layer.fc2.weight, layer.fc2.bias),
    )
