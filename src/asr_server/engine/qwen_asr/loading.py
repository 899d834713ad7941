"""The modules of a checkpoint in torch, with the SDK's names. They hold weights and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from asr_server.core.errors import ModelUnavailable
from asr_server.engine.qwen_asr.files import CheckpointFiles, failures, read
from asr_server.engine.weights import Weight

PREFIX, _EMBEDDINGS, _HEAD = "thinker.", "model.embed_tokens.weight", "lm_head.weight"
_ACTIVATIONS = {"gelu": F.gelu, "silu": F.silu}
# The SDK's defaults for settings that a configuration does not name.
_AUDIO = {"num_mel_bins": 128, "activation_function": "gelu", "max_source_positions": 1500}
_TEXT = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "rope_scaling": None, "head_dim": 128}


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts of a loaded checkpoint."""

    files: CheckpointFiles
    tower: Any  # the audio encoder
    text: Any  # the language model without its head
    head: nn.Linear  # hidden (…, d) to logits (…, vocabulary), or to time slots

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype


def load(directory: Path, *, device: str, dtype: torch.dtype) -> Parts:
    """Load a checked checkpoint directory in `dtype` onto `device`, which must be prepared.

    Weights are mapped from their files in their own format, not read into memory first. Raises `ModelUnavailable` if
    files are damaged or weights are missing, and `EngineOutOfMemory`.
    """
    files = read(directory)
    with failures(directory):
        with torch.device("meta"):
            modules = Modules(files.thinker)
        stored = {name.removeprefix(PREFIX): _tensor(weight) for name, weight in files.weights().items()}
        is_tied = _HEAD not in stored
        given = {**stored, _HEAD: stored[_EMBEDDINGS]} if is_tied else stored
        missing = sorted(modules.load_state_dict(given, strict=False, assign=True).missing_keys)
        if is_tied:
            modules.lm_head.weight = modules.model.embed_tokens.weight
        if missing:
            raise ModelUnavailable(
                f"The checkpoint in {directory.name} lacks {len(missing)} weights, such as {PREFIX}{missing[0]}."
            )
        modules.requires_grad_(False).to(device, dtype)
    return Parts(files, modules.audio_tower, modules.model, modules.lm_head)


def _tensor(weight: Weight) -> torch.Tensor:
    if weight.format == "BF16":
        return torch.from_numpy(weight.numbers.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(weight.numbers)


class Modules(nn.Module):
    """The modules of a checkpoint, with the names of its weights after `PREFIX`. `thinker`: their configuration."""

    def __init__(self, thinker: dict[str, Any]) -> None:
        super().__init__()
        text = SimpleNamespace(**_TEXT | thinker["text_config"])
        self.audio_tower = _AudioTower(SimpleNamespace(**_AUDIO | thinker["audio_config"]))
        self.model = _Text(text)
        self.lm_head = nn.Linear(text.hidden_size, thinker.get("classify_num") or text.vocab_size, bias=False)


class _AudioTower(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        width, channels = config.d_model, config.downsample_hidden_size
        self.n_window, self.n_window_infer = config.n_window, config.n_window_infer
        self.act = _ACTIVATIONS[config.activation_function]
        self.conv2d1 = nn.Conv2d(1, channels, 3, 2, padding=1)
        self.conv2d2 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv2d3 = nn.Conv2d(channels, channels, 3, 2, padding=1)
        self.conv_out = nn.Linear(channels * -(-config.num_mel_bins // 8), width, bias=False)
        self.layers = nn.ModuleList(_AudioLayer(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(width)
        self.proj1, self.proj2 = nn.Linear(width, width), nn.Linear(width, config.output_dim)
        self.positional_embedding = nn.Module()
        self.positional_embedding.register_buffer(
            "positional_embedding", _sinusoids(config.max_source_positions, width), persistent=False
        )


def _sinusoids(length: int, width: int) -> torch.Tensor:
    """Return the position embeddings, (length, width): sines, then cosines."""
    numbers, places = (torch.arange(count, dtype=torch.float32, device="cpu") for count in (width // 2, length))
    angles = places[:, None] * torch.exp(-np.log(10_000) / (width // 2 - 1) * numbers)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class _AudioLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.d_model, config.encoder_ffn_dim
        self.self_attn = _linears(q_proj=(width, width), k_proj=(width, width), v_proj=(width, width))
        self.self_attn.out_proj = nn.Linear(width, width)
        self.self_attn.num_heads = config.encoder_attention_heads
        self.self_attn.scaling = (width // config.encoder_attention_heads) ** -0.5
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.activation_fn = _ACTIVATIONS[config.activation_function]


class _Text(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_TextLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)

    def rotary_emb(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine (1, n, dim) of the positions (3, 1, n), whose three axes are equal."""
        kind = (self.config.rope_scaling or {}).get("rope_type", "default")
        if kind != "default":
            raise ModelUnavailable(f"A language model with {kind} positions is not supported.")
        evens = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device=like.device)
        angles = positions[0, :, :, None] * self.config.rope_theta ** -(evens / self.config.head_dim)
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


class _TextLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        sizes = {
            "q_proj": (width, queries),
            "k_proj": (width, keys),
            "v_proj": (width, keys),
            "o_proj": (queries, width),
        }
        self.self_attn = _linears(bias=config.attention_bias, **sizes)
        self.self_attn.q_norm, self.self_attn.k_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.mlp = _linears(bias=False, gate_proj=(width, inner), up_proj=(width, inner), down_proj=(inner, width))
        self.mlp.act_fn = _ACTIVATIONS[config.hidden_act]
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)


def _linears(*, bias: bool = True, **sizes: tuple[int, int]) -> Any:
    """Return a module with linear layers of these names and sizes."""
    module = nn.Module()
    for name, (inputs, outputs) in sizes.items():
        module.add_module(name, nn.Linear(inputs, outputs, bias=bias))
    return module
