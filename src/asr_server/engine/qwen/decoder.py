"""Rows of a language model over one slot cache: prefill some, step all, drop one. Knows tokens, not audio or text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from asr_server.engine.qwen.capacity import Capacity
from asr_server.engine.qwen.drafting import MAX_PROPOSAL, Draft, accepted
from asr_server.engine.qwen.loops import loop
from asr_server.engine.qwen.slots import ATTENTION, KeysValues, SlotCache


@dataclass(slots=True, eq=False)
class Row:
    """One answer in the making.

    `budget`: most new tokens. `temperature`: 0 is greedy. `draft`: ids that the answer may turn out to be; only greedy
    rows use it. `watch`: a token whose log-probability as the second one is wanted. Set by the decoder: `watched`, that
    log-probability; `length`, tokens in the cache; `ids` and `logprobs`, generated so far, the end token
    excluded; `ended`, the model said so; `looping`, the unit of a loop at the end of `ids`; `passes`, forward passes.
    """

    key: int
    budget: int
    temperature: float = 0.0
    generator: torch.Generator | None = None
    draft: Draft | None = None
    watch: int | None = None
    length: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False
    looping: int = 0
    passes: int = 0
    watched: float | None = None

    @property
    def finished(self) -> bool:
        """Whether no more steps are wanted."""
        return self.ended or self.looping > 0 or len(self.ids) >= self.budget


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """What a row starts from: `embeds` (n, d) behind `kept`, the keys and values of the tokens before them, if any."""

    row: Row
    embeds: torch.Tensor
    kept: KeysValues | None = None

    @property
    def start(self) -> int:
        """Tokens in `kept`."""
        return self.kept[0][0].shape[1] if self.kept is not None else 0

    @property
    def end(self) -> int:
        """Tokens in the cache after the prompt."""
        return self.start + len(self.embeds)


class SlotDecoder:
    """Rows sit in slots 0..n-1 without a gap: the last row moves into the slot of one that leaves."""

    def __init__(self, text: Any, head: Any, end_ids: frozenset[int], capacity: Capacity) -> None:
        self._text = text
        self._head = head
        self._end_ids = end_ids
        self._capacity = capacity
        self._device = head.weight.device
        text.config._attn_implementation = ATTENTION
        self.cache = SlotCache(text.config, device=self._device, dtype=head.weight.dtype)
        self.rows: list[Row] = []

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) to embeddings (n, d)."""
        embedded: torch.Tensor = self._text.embed_tokens(ids.to(self._device))
        return embedded

    def fits(self, tokens: int) -> bool:
        """Whether one more row of that many tokens can be seated now."""
        return self._capacity.fits(len(self.rows) + 1, max(tokens, self.cache.tokens if self.rows else 0))

    def prefill(self, starts: Sequence[Prefill]) -> None:
        """Seat rows, run their prompts and drafts in one forward pass, and take what it yields."""
        first = len(self.rows)
        longest = max(start.end + start.row.budget for start in starts)
        self._reserve(first + len(starts), longest)
        fed, embeds, positions = [], [], []
        for slot, start in enumerate(starts, first):
            if start.kept is not None:
                self.cache.write(slot, 0, start.kept)
            start.row.length = start.end
            proposal = _proposal(start.row)
            fed.append(proposal)
            embeds.append(torch.cat([start.embeds, self.embed(torch.tensor(proposal, dtype=torch.long))]))
            positions.append(torch.arange(start.start, start.start + len(embeds[-1]), device=self._device))
        hidden = self._forward(first, embeds, positions)
        for start, proposal, states in zip(starts, fed, hidden, strict=True):
            tail = states[len(start.embeds) - 1 : len(start.embeds) + len(proposal)]
            self._take(start.row, proposal, self._head(tail).float())
        self.rows += [start.row for start in starts]

    def step(self) -> None:
        """One pass for all rows, which must be unfinished: one new token each, more where a draft comes true."""
        fed, embeds, positions = [], [], []
        for row in self.rows:
            proposal = _proposal(row)
            fed.append(proposal)
            embeds.append(self.embed(torch.tensor([row.ids[-1], *proposal])))
            positions.append(torch.arange(row.length, row.length + len(embeds[-1]), device=self._device))
        hidden = self._forward(0, embeds, positions)
        logits = self._head(torch.cat(hidden)).float().split([len(states) for states in hidden])
        for row, proposal, row_logits in zip(self.rows, fed, logits, strict=True):
            row.length += 1
            self._take(row, proposal, row_logits)

    def drop(self, row: Row) -> None:
        """Take a row out and close the gap."""
        slot, last = self.rows.index(row), len(self.rows) - 1
        if slot != last:
            self.cache.move(last, slot, self.rows[last].length)
            self.rows[slot] = self.rows[last]
        self.rows.pop()

    def _reserve(self, rows: int, tokens: int) -> None:
        """Room for `rows` rows of `tokens`; all planned slots at once, unless rows this long leave room for fewer."""
        columns = max(tokens, self.cache.tokens - 1)
        slots = max(rows, min(self._capacity.rows, self._capacity.tokens // (columns + 1)))
        self.cache.reserve(max(slots, 1), tokens, keep=len(self.rows))

    def _forward(
        self, first: int, embeds: Sequence[torch.Tensor], positions: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Embeddings (q_i, d) at positions (q_i,) of slots `first`.. to their last hidden states (q_i, d)."""
        padded = pad_sequence(list(embeds), batch_first=True)
        where = pad_sequence(list(positions), batch_first=True, padding_value=-1)
        mask = self.cache.aim(first, where)
        hidden = self._text(
            inputs_embeds=padded,
            attention_mask=mask,
            position_ids=where.clamp(min=0).expand(3, -1, -1),
            past_key_values=self.cache,
            use_cache=True,
            cache_position=where[0],
        ).last_hidden_state
        return [states[: len(own)] for states, own in zip(hidden, embeds, strict=True)]

    def _take(self, row: Row, proposal: Sequence[int], logits: torch.Tensor) -> None:
        """Note what logits (1 + len(proposal), vocabulary) yield: the tokens that came true and one more."""
        chosen = _choose(logits, row)
        count = accepted(proposal, chosen) + 1
        scores = (logits[range(count), chosen[:count]] - logits[:count].logsumexp(-1)).tolist()
        row.length += count - 1
        row.passes += 1
        before = len(row.ids)
        if row.watch is not None and before <= 1 < before + count:
            row.watched = float(logits[1 - before].log_softmax(-1)[row.watch])
        for token, score in zip(chosen[:count], scores, strict=True):
            if token in self._end_ids:
                row.ended = True
                break
            row.ids.append(token)
            row.logprobs.append(score)
        row.looping = loop(row.ids)
        if row.draft is not None and len(row.ids) > before:
            row.draft.follow(row.ids, len(row.ids) - before)


def _proposal(row: Row) -> list[int]:
    """Tokens of the draft to verify with the next pass: all of it in the first, a few at a time after a re-join."""
    if row.draft is None or row.temperature > 0:
        return []
    room = max(0, row.budget - len(row.ids) - 1)
    return row.draft.proposal(room if not row.ids else min(room, MAX_PROPOSAL))


def _choose(logits: torch.Tensor, row: Row) -> list[int]:
    if row.temperature == 0:
        return list(logits.argmax(-1).tolist())
    weights = (logits[:1] / row.temperature).softmax(-1)
    return list(torch.multinomial(weights, 1, generator=row.generator)[:, 0].tolist())
