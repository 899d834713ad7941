"""Guided attention: some heads of the language model are shown where a word sounds. No optimiser.

On long clips a small language model loses its place, skips or repeats phrases. The synthesisers say where every word
sounds, so its heads can be told where to look.
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
class Guide:
    """A head of the language model that is to look where it is told."""

    layer: int
    head: int


@dataclass(frozen=True)
class Mark:
    """The token at `place` of the sequence, and the audio tokens from `first` until `last` where its word sounds."""

    place: int
    first: int
    last: int


@dataclass(frozen=True)
class Seen:
    """What goes into a layer's attention: hidden states (batch, tokens, hidden) and rotary tables."""

    states: Tensor
    rotary: Any


@contextmanager
def watched(network: Network, guides: Iterable[Guide]) -> Iterator[dict[int, Seen]]:
    """Collects what goes into the attention of the guided layers, by layer."""
    seen: dict[int, Seen] = {}

    def keep(layer: int) -> Any:
        return lambda _, __, inputs: seen.__setitem__(
            layer, Seen(inputs["hidden_states"], inputs["position_embeddings"])
        )

    layers = network.model.thinker.model.layers
    hooks = [
        layers[layer].self_attn.register_forward_pre_hook(keep(layer), with_kwargs=True)
        for layer in {guide.layer for guide in guides}
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def guidance(network: Network, guide: Guide, seen: Seen, rows: Sequence[Sequence[Mark]]) -> Tensor:
    """Mean of -log(attention that the head pays to the wanted audio tokens)."""
    batch, width, _ = seen.states.shape
    wanted = torch.zeros(batch, width, width, dtype=torch.bool)
    for row, marks in zip(wanted, rows, strict=True):
        for mark in marks:
            row[mark.place, mark.first : mark.last] = True
    asked = wanted.any(-1)
    if not asked.any():
        return seen.states.sum() * 0.0
    scores = _scores(network.model.thinker.model.layers[guide.layer].self_attn, guide.head, seen).float()
    scores = scores.masked_fill(~torch.ones(width, width, dtype=torch.bool).tril(), -torch.inf)[asked]
    paid = scores.masked_fill(~wanted[asked], -torch.inf).logsumexp(-1) - scores.logsumexp(-1)
    return -paid.mean()


def _scores(attention: Any, head: int, seen: Seen) -> Tensor:
    """Attention logits of one head before the causal mask, shape (batch, tokens, tokens)."""
    from qwen_asr.core.transformers_backend.modeling_qwen3_asr import apply_rotary_pos_emb

    shape = (*seen.states.shape[:-1], -1, attention.head_dim)
    queries = attention.q_norm(attention.q_proj(seen.states).view(shape))[:, :, head : head + 1].transpose(1, 2)
    group = head // attention.num_key_value_groups
    keys = attention.k_norm(attention.k_proj(seen.states).view(shape))[:, :, group : group + 1].transpose(1, 2)
    queries, keys = apply_rotary_pos_emb(queries, keys, *seen.rotary)
    return (queries @ keys.transpose(-1, -2))[:, 0] * attention.scaling
