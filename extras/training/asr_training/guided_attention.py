"""Guided attention: a loss that trains some heads of the language model to attend to the audio of a word.

On long clips a small language model loses its position, and skips or repeats phrases. The synthesisers report the
times of all words, which are targets for its attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr_training.network import Network


@dataclass(frozen=True)
class GuidedHead:
    """An attention head of the language model that is trained by this loss."""

    layer: int
    head: int


@dataclass(frozen=True)
class GuidedToken:
    """The token at `place` of the sequence, and the audio tokens [first, last) of its word."""

    place: int
    first: int
    last: int


@dataclass(frozen=True)
class AttentionInput:
    """The input of a layer's attention: hidden states (batch, tokens, hidden) and rotary tables."""

    states: Tensor
    rotary: Any


@contextmanager
def record_attention_inputs(network: Network, heads: Iterable[GuidedHead]) -> Iterator[dict[int, AttentionInput]]:
    """Collect the inputs of the attention of the guided layers, by layer."""
    recorded: dict[int, AttentionInput] = {}

    def keep(layer: int) -> Any:
        return lambda _, __, inputs: recorded.__setitem__(
            layer, AttentionInput(inputs["hidden_states"], inputs["position_embeddings"])
        )

    layers = network.model.thinker.model.layers
    hooks = [
        layers[layer].self_attn.register_forward_pre_hook(keep(layer), with_kwargs=True)
        for layer in {guide.layer for guide in heads}
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def guided_attention_loss(
    network: Network, guide: GuidedHead, recorded: AttentionInput, rows: Sequence[Sequence[GuidedToken]]
) -> Tensor:
    """Mean of -log(attention of the head to the target audio tokens)."""
    batch, width, _ = recorded.states.shape
    wanted = torch.zeros(batch, width, width, dtype=torch.bool)
    for row, guided_tokens in zip(wanted, rows, strict=True):
        for token in guided_tokens:
            row[token.place, token.first : token.last] = True
    guided = wanted.any(-1)
    if not guided.any():
        return recorded.states.sum() * 0.0
    scores = _scores(network.model.thinker.model.layers[guide.layer].self_attn, guide.head, recorded).float()
    scores = scores.masked_fill(~torch.ones(width, width, dtype=torch.bool).tril(), -torch.inf)[guided]
    log_attention = scores.masked_fill(~wanted[guided], -torch.inf).logsumexp(-1) - scores.logsumexp(-1)
    return -log_attention.mean()


def _scores(attention: Any, head: int, recorded: AttentionInput) -> Tensor:
    """Attention logits of one head before the causal mask, shape (batch, tokens, tokens)."""
    from qwen_asr.core.transformers_backend.modeling_qwen3_asr import apply_rotary_pos_emb

    shape = (*recorded.states.shape[:-1], -1, attention.head_dim)
    queries = attention.q_norm(attention.q_proj(recorded.states).view(shape))[:, :, head : head + 1].transpose(1, 2)
    group = head // attention.num_key_value_groups
    keys = attention.k_norm(attention.k_proj(recorded.states).view(shape))[:, :, group : group + 1].transpose(1, 2)
    queries, keys = apply_rotary_pos_emb(queries, keys, *recorded.rotary)
    return (queries @ keys.transpose(-1, -2))[:, 0] * attention.scaling
