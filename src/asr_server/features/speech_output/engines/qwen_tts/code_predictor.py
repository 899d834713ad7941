"""The codes of a frame behind its first: one small pass for each codebook, for all rows together.

All rows are at the same position, so no masks are needed; keys and values live for one frame.
`Qwen3TTSTalkerCodePredictorModelForConditionalGeneration` of the SDK is the reference.
"""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from asr_server.engine.torch.arena import AttentionShape
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.linear import MakeLinear, plain
from asr_server.features.speech_output.engines.qwen_tts.sampling import Sampling


class CodePredictor:
    """Takes the layers out of `model`, the SDK's module. `rows`: the most that share a frame."""

    def __init__(self, model: Any, sampling: Sampling, rows: int, make_linear: MakeLinear = plain) -> None:
        self._sampling = sampling
        self._project = model.small_to_mtp_projection
        self._heads = [head.weight for head in model.lm_head]
        # (codebooks, codes, d), of the talker's width.
        self._embeddings = [embedding.weight for embedding in model.model.codec_embedding]
        config = copy(model.model.config)
        config.max_position_embeddings = len(self._heads) + 1
        rotary = model.model.rotary_emb
        text = SimpleNamespace(
            config=config,
            layers=model.model.layers,
            norm=model.model.norm,
            embed_tokens=SimpleNamespace(weight=self._heads[0]),
            rotary_emb=lambda weight, positions: rotary(weight, positions[0]),
        )
        self.layers = LanguageModel(text, make_linear)
        shape = AttentionShape.of(config)
        size = (shape.layers, 2, rows, shape.kv_heads, config.max_position_embeddings, shape.dim)
        self._held = torch.zeros(size, device=self.layers.device, dtype=self.layers.dtype)

    def __call__(self, hidden: torch.Tensor, first: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
        """Codes (n, codebooks - 1) of frames that begin with codes of embeddings `first` (n, d), by the talker's states
        (n, d) and chances (n, codebooks - 1)."""
        rows, codes = len(hidden), list[torch.Tensor]()
        embeds, position = torch.cat([hidden, first]), 1
        positions = torch.arange(2, device=hidden.device)[:, None].expand(2, rows).flatten()
        for number, head in enumerate(self._heads):
            states = self.layers(self._project(embeds), positions, _Frame(self._held, rows, position).attend)[-rows:]
            codes.append(self._sampling.draw(F.linear(states, head).float(), chances[:, number]))
            embeds, position = F.embedding(codes[-1], self._embeddings[number]), position + 1
            positions = positions[-rows:] + 1
        return torch.stack(codes, dim=1)

    def completed(
        self, hidden: torch.Tensor, first: torch.Tensor, chances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the codes, and the sum of their embeddings."""
        codes = self(hidden, first, chances)
        return codes, self.embeds(codes)

    def embeds(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the sum (n, d) of the embeddings of codes (n, codebooks - 1)."""
        parts = [F.embedding(codes[:, number], weight) for number, weight in enumerate(self._embeddings)]
        return torch.stack(parts).sum(0)


class _Frame:
    """Attention of one pass: of the rows' tokens at `position`, at the first pass of a frame also of those before."""

    def __init__(self, held: torch.Tensor, rows: int, position: int) -> None:
        self._held, self._rows, self._position = held, rows, position

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows, position, groups = self._rows, self._position, q.shape[1] // k.shape[1]
        held = self._held[layer, :, :rows]
        both = len(k) > rows
        if both:
            held[0, :, :, 0], held[1, :, :, 0] = k[:rows], v[:rows]
        held[0, :, :, position], held[1, :, :, position] = k[-rows:], v[-rows:]
        keys, values = held[:, :, :, : position + 1]
        # The heads that share keys are further queries: see `passes.Pass.attend`.
        queries = q[-rows:].unflatten(1, (k.shape[1], groups))
        out = F.scaled_dot_product_attention(queries, keys, values).flatten(1)
        # The token before sees itself alone.
        return torch.cat([v[:rows, :, None].expand(-1, -1, groups, -1).flatten(1), out]) if both else out
