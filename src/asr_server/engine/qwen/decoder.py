"""Rows of a language model over one slot cache: prefill some, step all, drop one. Works on tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from asr_server.engine.qwen.capacity import ROW_TOKENS, Capacity
from asr_server.engine.qwen.slots import ATTENTION, PADDING, KeysValues, SlotCache, bucket
from asr_server.engine.row import Row
from asr_server.engine.speculative import accepted

# Sampling is greedy long before this; by less than that, logits cannot be divided.
_COLDEST = 1e-4


@dataclass(slots=True, eq=False, kw_only=True)
class SlotRow(Row):
    """A row in a slot. `generator`: the source of chance where it is sampled. `no_speech_id`: the token that means "no
    speech" where it is the second one; None if its probability is not wanted.

    Set by the decoder: `length`, tokens in the cache; `no_speech_logprob`, the log-probability of `no_speech_id`.
    """

    generator: torch.Generator | None = None
    no_speech_id: int | None = None
    length: int = 0
    no_speech_logprob: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """What a row starts from: `embeds` (n, d), behind the tokens whose keys and values are in `cached`, if any.

    `expected`: tokens of the answer that room is made for at once.
    """

    row: SlotRow
    embeds: torch.Tensor
    expected: int
    cached: KeysValues | None = None

    @property
    def start(self) -> int:
        """Tokens in `cached`."""
        return self.cached[0][0].shape[1] if self.cached is not None else 0

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
        self.rows: list[SlotRow] = []

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids (n,) to embeddings (n, d)."""
        embedded: torch.Tensor = self._text.embed_tokens(ids.to(self._device))
        return embedded

    def fits(self, rows: int, tokens: int) -> bool:
        """Whether `rows` more rows, the longest of `tokens` with its expected answer, can be seated now."""
        return self._capacity.fits(len(self.rows) + rows, self._columns(tokens))

    def prefill(self, starts: Sequence[Prefill]) -> None:
        """Seat rows, run their prompts and drafts in one forward pass, and take what it yields."""
        first = len(self.rows)
        fed, embeds = [start.row.proposal() for start in starts], []
        longest = max(start.end + max(start.expected, len(own)) for start, own in zip(starts, fed, strict=True))
        self._reserve(first + len(starts), longest)
        for slot, (start, proposal) in enumerate(zip(starts, fed, strict=True), first):
            if start.cached is not None:
                self.cache.write(slot, 0, start.cached)
            start.row.length = start.end
            embeds.append(torch.cat([start.embeds, self.embed(torch.tensor(proposal, dtype=torch.long))]))
        hidden = self._forward(first, embeds, [start.start for start in starts])
        tails = [states[len(start.embeds) - 1 :] for start, states in zip(starts, hidden, strict=True)]
        self._take([start.row for start in starts], fed, tails)
        self.rows += [start.row for start in starts]

    def step(self) -> None:
        """One pass for all rows, which must be unfinished: one new token each, more where a draft comes true."""
        fed = [row.proposal() for row in self.rows]
        ids = [[row.ids[-1], *proposal] for row, proposal in zip(self.rows, fed, strict=True)]
        longest = max(row.length + len(own) for row, own in zip(self.rows, ids, strict=True))
        if longest >= self.cache.tokens:  # an answer is longer than expected
            self._reserve(len(self.rows), longest)
        # One transfer for all rows: on a GPU each small one would cost as much as a layer.
        embeds = self.embed(torch.tensor([i for own in ids for i in own])).split([len(own) for own in ids])
        hidden = self._forward(0, embeds, [row.length for row in self.rows])
        self._take(self.rows, fed, hidden)
        # Last: a pass that fails has moved no row, and may be tried again.
        for row in self.rows:
            row.length += 1

    def drop(self, row: SlotRow) -> None:
        """Take a row out and close the gap."""
        slot, last = self.rows.index(row), len(self.rows) - 1
        if row.overflowed:
            self.cache.clear(slot)
        if slot != last:
            self.cache.move(last, slot, self.rows[last].length)
            self.rows[slot] = self.rows[last]
        self.rows.pop()

    def _reserve(self, rows: int, tokens: int) -> None:
        """Room for `rows` rows of `tokens`; all planned slots at once, fewer while rows are longer than planned.

        Rows that are seated get it in any case, be it beyond the plan: their answers are longer than was expected.
        """
        columns = self._columns(tokens)
        slots = max(rows, min(self._capacity.rows, self._capacity.tokens // columns))
        self.cache.reserve(slots, columns, keep=len(self.rows))

    def _columns(self, tokens: int) -> int:
        """Tokens of each slot when one of `tokens` joins: as planned, unless it or a row that is seated needs more."""
        return max(bucket(tokens + 1), self.cache.tokens if self.rows else ROW_TOKENS)

    def _forward(self, first: int, embeds: Sequence[torch.Tensor], starts: Sequence[int]) -> list[torch.Tensor]:
        """Embeddings (q_i, d) at positions starts[i].. of slots `first`.. to their last hidden states (q_i, d)."""
        padded = pad_sequence(list(embeds), batch_first=True)
        longest = padded.shape[1]
        lengths = [len(own) for own in embeds]
        where = torch.tensor(
            [[*range(start, start + n), *[PADDING] * (longest - n)] for start, n in zip(starts, lengths, strict=True)],
            device=self._device,
        )
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

    def _take(self, rows: Sequence[SlotRow], proposals: Sequence[list[int]], hidden: Sequence[torch.Tensor]) -> None:
        """Note what hidden states (1 + len(proposal), d) yield: the proposed tokens that came true and one more."""
        logits = self._head(torch.cat(list(hidden))).float()
        chosen = _choose(logits, rows, [len(states) for states in hidden])
        normal = logits.logsumexp(-1)
        scores = (logits.gather(-1, chosen[:, None])[:, 0] - normal).tolist()
        tokens, at = chosen.tolist(), 0
        for row, proposal, states in zip(rows, proposals, hidden, strict=True):
            end = at + len(states)
            count = accepted(proposal, tokens[at:end]) + 1
            if row.no_speech_id is not None and len(row.ids) <= 1 < len(row.ids) + count:
                place = at + 1 - len(row.ids)
                row.no_speech_logprob = float(logits[place, row.no_speech_id] - normal[place])
            row.length += count - 1
            row.note(tokens[at : at + count], scores[at : at + count], self._end_ids)
            at = end


def _choose(logits: torch.Tensor, rows: Sequence[SlotRow], counts: Sequence[int]) -> torch.Tensor:
    """The next token behind each query: logits (n, vocabulary), `counts` queries a row, to ids (n,)."""
    chosen = logits.argmax(-1)
    at = 0
    for row, count in zip(rows, counts, strict=True):
        if row.temperature > 0:  # a sampled row has no draft: only the last of its queries is open
            weights = (logits[at + count - 1] / max(row.temperature, _COLDEST)).softmax(-1)
            chosen[at + count - 1] = torch.multinomial(weights, 1, generator=row.generator)[0]
        if row.forced and not row.ids:
            chosen[at : at + len(row.forced)] = torch.tensor(row.forced, device=chosen.device)
        at += count
    return chosen
