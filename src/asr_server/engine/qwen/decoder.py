"""Rows of a language model over one slot cache: prefill one, step all, drop one. Knows tokens, not audio or text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from asr_server.engine.qwen.slots import SlotCache


@dataclass(slots=True, eq=False)
class Row:
    """One answer in the making.

    `budget`: most new tokens. `temperature`: 0 is greedy. `length`: tokens in the cache (set by the decoder).
    `ids`, `logprobs`: generated so far, the end token excluded. `ended`: the model said so.
    """

    key: int
    budget: int
    temperature: float = 0.0
    generator: torch.Generator | None = None
    length: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False

    @property
    def finished(self) -> bool:
        """Whether no more steps are wanted."""
        return self.ended or len(self.ids) >= self.budget


class SlotDecoder:
    """Rows sit in slots 0..n-1 without a gap: the last row moves into the slot of one that leaves."""

    def __init__(self, text: Any, head: Any, end_ids: frozenset[int]) -> None:
        self._text = text
        self._head = head
        self._end_ids = end_ids
        self._device = head.weight.device
        self._cache = SlotCache(text.config, device=self._device, dtype=head.weight.dtype)
        self.rows: list[Row] = []

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) to embeddings (n, d)."""
        embedded: torch.Tensor = self._text.embed_tokens(ids.to(self._device))
        return embedded

    def prefill(self, row: Row, prompt: torch.Tensor) -> None:
        """Seat a row, run its prompt embeddings (n, d) and take its first token."""
        slot, length = len(self.rows), len(prompt)
        self._cache.reserve(slot + 1, length + row.budget)
        positions = torch.arange(length, device=self._device)[None]
        logits = self._forward(prompt[None], torch.tensor([slot], device=self._device), positions)
        row.length = length
        self._take(row, logits[0])
        self.rows.append(row)

    def step(self, rows: int) -> None:
        """One token for each of the first `rows` rows, which must be unfinished and have at least one token."""
        batch = self.rows[:rows]
        last = torch.tensor([row.ids[-1] for row in batch], device=self._device)
        positions = torch.tensor([[row.length] for row in batch], device=self._device)
        slots = torch.arange(rows, device=self._device)
        logits = self._forward(self.embed(last)[:, None], slots, positions)
        for row, row_logits in zip(batch, logits, strict=True):
            row.length += 1
            self._take(row, row_logits)

    def drop(self, row: Row) -> None:
        """Take a row out and close the gap."""
        slot, last = self.rows.index(row), len(self.rows) - 1
        if slot != last:
            self._cache.move(last, slot, self.rows[last].length)
            self.rows[slot] = self.rows[last]
        self.rows.pop()

    def _forward(self, embeds: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Embeddings (b, q, d) at `positions` (b, q) of `slots` (b,) to the last query's logits (b, vocabulary)."""
        mask = self._cache.aim(slots, positions)
        hidden = self._text(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=positions.expand(3, -1, -1),
            past_key_values=self._cache,
            use_cache=True,
            cache_position=positions[0],
        ).last_hidden_state
        logits: torch.Tensor = self._head(hidden[:, -1]).float()
        return logits

    def _take(self, row: Row, logits: torch.Tensor) -> None:
        """Choose the next token of a row from logits (vocabulary,) and note it."""
        token = _choose(logits, row)
        if token in self._end_ids:
            row.ended = True
            return
        row.ids.append(token)
        row.logprobs.append(float(logits[token] - logits.logsumexp(-1)))


def _choose(logits: torch.Tensor, row: Row) -> int:
    if row.temperature == 0:
        return int(logits.argmax())
    weights = (logits / row.temperature).softmax(-1)
    return int(torch.multinomial(weights, 1, generator=row.generator))
