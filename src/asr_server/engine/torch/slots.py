"""Rows of a language model in the slots of one arena: seat some, run their prompts, drop one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from asr_server.engine.memory import Capacity
from asr_server.engine.row import KeptTokens
from asr_server.engine.rows import NoRoom, R, RowInput, Rows, Slotted, tokens_left
from asr_server.engine.torch import memory
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import (
    Arena,
    AttentionShape,
    Layout,
    Pass,
    PassGraphs,
    TokenSpan,
    padded_query,
    rounded,
)


class Slots(Rows[R]):
    """Rows sit in slots 0..n-1 without a gap, those that decode before those whose prompt is not at its end."""

    def __init__(self, model: LanguageModel, capacity: Capacity) -> None:
        super().__init__(model)
        self.device = str(model.device)
        self._prompts: PassGraphs | None = None  # recorded passes over prompts
        self._capacity = capacity
        shape = AttentionShape.of(model.config)
        self.arena = Arena(shape, capacity.tokens, device=model.device, dtype=model.dtype)

    @abstractmethod
    def _begin(self, rows: Sequence[R], states: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Compute what follows the prompts of rows, by the last hidden states (n, d) of each; the function that is
        returned notes it and cannot fail."""

    def computing(self) -> AbstractContextManager[Any]:
        """See `Rows`."""
        return torch.inference_mode()

    def figures(self) -> dict[str, Any]:
        """See `Rows`."""
        return memory.gpu_figures(self.model.device)

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Rows`."""
        return self.model.embed(memory.upload(torch.tensor(ids, dtype=torch.long), self.model.device))

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See `Rows`."""
        return torch.cat(list(parts))

    def padded(self, queries: int, columns: int) -> tuple[int, int]:
        """See `Rows`."""
        return padded_query(queries), rounded(columns)

    def fits(self, tokens: int, rows: int = 1) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""
        total = len(self.rows) + rows
        return total <= self._capacity.rows and self._division(total, tokens) is not None

    def seat(self, row: R, given: RowInput, cached: KeptTokens | None = None) -> None:
        """See `Rows`."""
        slot, length = len(self.rows), cached.count if cached is not None else 0
        self._make_room(slot + 1, row.reserved)
        if cached is not None:
            self.arena.put(slot, cached.data)
        row.length, row.input = length, given
        self.rows.append(row)

    def copy(self, row: R, tokens: int) -> KeptTokens:
        """Copy the keys and values of a row's first `tokens`."""
        return KeptTokens(tokens, self.arena.copy(self.rows.index(row), tokens))

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.nbytes

    def prefill(self, parts: Sequence[tuple[R, int]]) -> None:
        """See `Rows`."""
        first = len(self.decoding)
        for slot, (row, _) in enumerate(parts, first):
            self._swap(slot, self.rows.index(row))
        spans = [TokenSpan(slot, row.length, count) for slot, (row, count) in enumerate(parts, first)]
        inputs = [row.input for row, _ in parts if row.input is not None]
        embeds = torch.cat([given.ready[:count] for given, (_, count) in zip(inputs, parts, strict=True)])
        recorded = self._prompts.run(spans, embeds=embeds) if self._prompts is not None else None
        hidden = recorded[0][: len(embeds)] if recorded is not None else self._run(embeds, spans)
        states_of = hidden.split([count for _, count in parts])
        ended = [
            (row, states) for (row, count), states in zip(parts, states_of, strict=True) if count == tokens_left(row)
        ]
        note = self._begin([row for row, _ in ended], [states for _, states in ended])
        # From here on nothing fails: a pass that does has moved no row, and may be tried again.
        for given, (row, count) in zip(inputs, parts, strict=True):
            given.skip(count)
            row.length += count
        for row, _ in ended:
            row.input = None
        note()

    def _run(self, embeds: torch.Tensor, spans: Sequence[TokenSpan]) -> torch.Tensor:
        aim = Pass(self.arena, Layout(self.arena, spans))
        return self.model(embeds, aim.positions, aim.attend)

    def drop(self, row: R) -> None:
        """Take a row out and close the gap."""
        slot, decodes, overflow = self.rows.index(row), row.input is None, _overflow(row)
        row.input = None  # freed first: memory may be why it leaves
        if overflow:
            self.arena.clear(slot, overflow)
        if decodes:
            # The last that decodes takes its place, and the last that does not takes the place of that one.
            slot = self._fill(slot, len(self.decoding) - 1)
        self._fill(slot, len(self.rows) - 1)
        self.rows.pop()

    def _fill(self, slot: int, last: int) -> int:
        """Move the row of one slot into another; return the slot that is free then."""
        if slot != last:
            moved = self.rows[slot] = self.rows[last]
            self.arena.move(last, slot, moved.length)
            if overflow := _overflow(moved):
                self.arena.clear(last, overflow)
        return last

    def _swap(self, one: int, other: int) -> None:
        if one != other:
            rows = self.rows
            self.arena.swap(one, other, max(rows[one].length, rows[other].length))
            rows[one], rows[other] = rows[other], rows[one]

    def _make_room(self, rows: int, tokens: int) -> None:
        """Divide the arena anew where `rows` rows, one of them of `tokens`, have no room. Raises `NoRoom`."""
        division = self._division(rows, tokens)
        if division is None:
            raise NoRoom
        self.arena.divide(*division, held=[row.length for row in self.rows])

    def _division(self, rows: int, tokens: int) -> tuple[int, int] | None:
        """Slots and columns for `rows` rows, one of them of `tokens`: as planned where that suffices, since steps are
        recorded so, and else as they are while they suffice."""
        columns = 1 + max([tokens, *(max(row.reserved, row.length) for row in self.rows)])
        arena, planned = self.arena, self._capacity.columns
        if columns <= planned:
            return self._capacity.rows, planned
        if self.rows and rows <= arena.slots and columns <= arena.columns:
            return arena.slots, arena.columns
        columns = min(rounded(columns), arena.tokens)
        if rows == 1:
            return (arena.tokens // columns, columns) if tokens < columns else None
        return (arena.tokens // columns, columns) if rows * columns <= arena.tokens else None


def _overflow(row: Slotted) -> int:
    """Return how many columns of a slot may hold numbers that are not finite, which a mask does not hide from the
    slot's next row: all that its passes may have written, those that failed included. Nothing is known yet of a row
    whose prompt is not at its end."""
    return max(row.reserved, row.length + tokens_left(row)) if row.overflowed or row.input is not None else 0
