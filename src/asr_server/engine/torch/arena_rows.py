"""Rows of a language model in one arena: seat some, run their prompts, drop one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch

from asr_server.engine.memory import Capacity
from asr_server.engine.row import KeptTokens
from asr_server.engine.rows import NoRoom, RowInput, Rows, Slotted, tokens_left
from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import Arena, AttentionShape, Layout, Pass, PassGraphs, PassShapes


class Placed(Slotted, Protocol):
    """A row whose keys and values are in an arena."""

    places: range  # set by `ArenaRows`: those of its tokens, and of more that it may come to


R = TypeVar("R", bound=Placed)


class ArenaRows(Rows[R]):
    """Each row has a range of places of its own. Rows of any lengths share the arena as long as all of them fit."""

    def __init__(self, model: LanguageModel, capacity: Capacity) -> None:
        super().__init__(model)
        self.device = str(model.device)
        self._prompts: PassGraphs | None = None  # recorded passes over prompts
        self._capacity = capacity
        shape = AttentionShape.of(model.config)
        self.arena = Arena(shape, capacity.tokens, device=model.device, dtype=model.dtype)
        self._shapes = PassShapes(self.arena, capacity.rows, capacity.share)

    @abstractmethod
    def _begin(self, rows: Sequence[R], states: Sequence[torch.Tensor], ahead: bool) -> Callable[[], None]:
        """Compute what follows the prompts of rows, by the last hidden states (n, d) of each; the function that is
        returned notes it and cannot fail. `ahead`: see `prefill`."""

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

    def fits(self, tokens: int, rows: int = 1) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""
        # A row that waits for room to grow has it before others begin.
        promised = sum(map(_needed, self.rows)) + rows * tokens
        return len(self.rows) + rows <= self._capacity.rows and promised < self.arena.tokens

    def seat(self, row: R, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a row its places; see `Rows.seat`. Raises `NoRoom`."""
        row.places = range(0)
        self._make_room(row)
        if cached is not None:
            self.arena.put(row.places.start, cached.data)
            row.length = cached.count
        row.input = given
        self.rows.append(row)

    def copy(self, row: R, tokens: int) -> KeptTokens:
        """Copy the keys and values of a row's first `tokens`."""
        return KeptTokens(tokens, self.arena.copy(row.places.start, tokens))

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.arena.nbytes

    def prefill(self, parts: Sequence[tuple[R, int]], *, ahead: bool = False) -> None:
        """See `Rows`."""
        spans = [TokenSpan(row.places.start, row.length, count) for row, count in parts]
        inputs = [row.input for row, _ in parts if row.input is not None]
        embeds = torch.cat([given.ready[:count] for given, (_, count) in zip(inputs, parts, strict=True)])
        recorded = self._prompts.run(spans, embeds=embeds) if self._prompts is not None else None
        hidden = recorded[0][: len(embeds)] if recorded is not None else self.model(embeds, self._pass(spans))
        states_of = hidden.split([count for _, count in parts])
        ended = [
            (row, states) for (row, count), states in zip(parts, states_of, strict=True) if count == tokens_left(row)
        ]
        note = self._begin([row for row, _ in ended], [states for _, states in ended], ahead)
        # From here on nothing fails: a pass that does has moved no row, and may be tried again.
        for given, (row, count) in zip(inputs, parts, strict=True):
            given.skip(count)
            row.length += count
        for row, _ in ended:
            row.input = None
        note()

    def _pass(self, spans: Sequence[TokenSpan], ids: Sequence[int] = ()) -> Pass:
        return Pass(self.arena, Layout(self.arena, spans, ids))

    def drop(self, row: R) -> None:
        """Take a row out."""
        left = _unsafe(row)
        row.input = None  # freed first: memory may be why it leaves
        self.rows.remove(row)
        if left:
            self.arena.clear(left)

    def _make_room(self, row: R) -> None:
        """Give a row the places that it lacks; it may be moved then, and others. Raises `NoRoom`."""
        tokens = _needed(row)
        if tokens <= len(row.places):
            return
        others = sorted((other for other in self.rows if other is not row), key=lambda other: other.places.start)
        begins = [0, *(other.places.stop for other in others)]
        ends = [*(other.places.start for other in others), self.arena.tokens - 1]
        free = [range(begin, end) for begin, end in zip(begins, ends, strict=True)]
        here = [range(row.places.start, gap.stop) for gap in free if row.places.start in gap]
        # As many as planned, at a multiple of that, where they are free: then it seldom has to be moved, and a recorded
        # pass with padding need not copy what it sees.
        share = self._capacity.share
        planned = -(-tokens // share) * share
        even = [range(-(-gap.start // share) * share, gap.stop) for gap in free]
        fitting = [gap for gap in here if len(gap) >= tokens]
        fitting = fitting or [gap for gap in even if len(gap) >= planned] or [gap for gap in free if len(gap) >= tokens]
        found = fitting[0] if fitting else self._room_beside(row, others)
        self._move(row, found[:planned])

    def _room_beside(self, row: R, others: Sequence[R]) -> range:
        """Move rows together, those behind a row to the end of the arena. Returns the free places around the row.

        Raises `NoRoom`.
        """
        if sum(map(_needed, others)) + _needed(row) >= self.arena.tokens:
            raise NoRoom
        begin, end = 0, self.arena.tokens - 1
        behind = [other for other in others if row.places and other.places.start > row.places.start]
        # None gets more than it has: it would be written over one that was not moved yet.
        for other in others[: len(others) - len(behind)]:
            begin = self._move(other, range(begin, begin + min(_needed(other), len(other.places)))).stop
        for other in reversed(behind):
            end = self._move(other, range(end - min(_needed(other), len(other.places)), end)).start
        return range(begin, end)

    def _move(self, row: R, places: range) -> range:
        # A pass that is queued on a GPU comes before this copy, and before what is written where the row was.
        if places.start != row.places.start:
            if row.length:
                self.arena.move(row.places.start, places.start, row.length)
            if left := _unsafe(row):
                kept = range(places.start, places.start + row.length)
                self.arena.clear(range(left.start, min(left.stop, max(left.start, kept.start))))
                self.arena.clear(range(max(left.start, min(left.stop, kept.stop)), left.stop))
        row.places = places
        return places


def _needed(row: Slotted) -> int:
    """Return how many places a row is to have."""
    return max(row.reserved, row.length + tokens_left(row))


def _unsafe(row: Placed) -> range:
    """Return the places of a row that may hold what is no number: all that its passes may have written, also those that
    failed. Nothing is known yet of a row whose prompt is not at its end."""
    return row.places[: _needed(row)] if row.overflowed or row.input is not None else range(0)
