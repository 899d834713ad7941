"""Rows of a language model in the slots of one arena: seat some, run their prompts, drop one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from asr_server.engine.row import KeptTokens
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.memory import Capacity
from asr_server.engine.torch.passes import (
    Arena,
    AttentionShape,
    Capture,
    Layout,
    Pass,
    PassGraphs,
    TokenSpan,
    padded_query,
    rounded,
)

# Places of queries and columns, with padding, that the rows of one pass over prompts may have: each takes some bytes of
# the mask and some time in each layer.
_MOST_PLACES = 2**24


class NoRoom(MemoryError):
    """Rows became longer than the arena can hold together."""


class RowInput:
    """The part of a row's prompt that is not run yet, in embeddings (n, d); those of audio are made when they are
    needed."""

    def __init__(self, ready: torch.Tensor, windows: Sequence[Any], after: torch.Tensor, tail: int) -> None:
        self.ready = ready  # the embeddings that are made
        self.windows = list(windows)  # audio after them, each with its number of `tokens`
        self.tail = tail  # tokens at the end that have to be run in one pass
        self._after = after  # embeddings of what follows the audio
        self.left = len(ready) + sum(window.tokens for window in windows) + len(after)
        self.add([])

    def missing(self, count: int) -> list[Any]:
        """Return the windows without which the next `count` tokens cannot be run."""
        wanted, length = [], len(self.ready)
        for window in self.windows:
            if length >= min(count, self.left - len(self._after)):
                break
            wanted.append(window)
            length += window.tokens
        return wanted

    def add(self, audio: Sequence[torch.Tensor]) -> None:
        """Add the embeddings of the next windows."""
        self.ready = torch.cat([self.ready, *audio])
        del self.windows[: len(audio)]
        if not self.windows:
            self.ready, self._after = torch.cat([self.ready, self._after]), self._after[:0]

    def skip(self, count: int) -> None:
        """Forget the next `count`, which have been run."""
        self.ready = self.ready[count:]
        self.left -= count


class Slotted(Protocol):
    """A row that can have a slot. `length` and `input` are set by `Slots`."""

    key: int
    urgent: bool  # its prompt is run before those of others
    length: int  # tokens in the arena
    input: RowInput | None  # what is left of its prompt; None once it decodes
    reserved: int  # tokens that its slot has to have room for

    @property
    def overflowed(self) -> bool:
        """True if its numbers left the range of their format."""


R = TypeVar("R", bound=Slotted)


class Rows(ABC, Generic[R]):
    """Rows with their keys and values: those that decode, and those whose prompt is not at its end."""

    def __init__(self, model: Any) -> None:
        self.model = model  # with `device` and `dtype`
        self.rows: list[R] = []
        self._prompts: PassGraphs | None = None  # recorded passes over prompts

    @abstractmethod
    def fits(self, tokens: int, rows: int = 1) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""

    @abstractmethod
    def seat(self, row: R, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a row its place. `given` is its prompt after the tokens whose keys and values are in `cached`, if
        any."""

    @abstractmethod
    def prefill(self, parts: Sequence[tuple[R, int]]) -> None:
        """Run a number of tokens of each of those rows' prompts, which must be ready, in one pass.

        Rows that come to the end of theirs decode from then on.
        """

    @abstractmethod
    def step(self, *rows: R) -> None:
        """Run one pass for rows in neighbouring places that decode and are unfinished, or for all of them. A pass that
        fails has moved no row."""

    @abstractmethod
    def drop(self, row: R) -> None:
        """Take a row out."""

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes, before any row is seated, and return how many. `on_each` is called before each."""
        return 0

    @property
    def decoding(self) -> list[R]:
        """Rows that `step` moves."""
        return [row for row in self.rows if row.input is None]

    def next_input(self, tokens: int) -> list[tuple[R, int]]:
        """Return rows whose prompts should be run next, and how many tokens of each, about `tokens` in all.

        Rows whose prompts are then at their end are first. All are padded to the longest: those that would make this
        expensive wait for another pass.
        """
        left, query, width, found = tokens, 0, 0, list[tuple[R, int]]()
        waiting = [(row, row.input) for row in self.rows if row.input is not None]
        for row, given in sorted(waiting, key=lambda pair: (not pair[0].urgent, pair[0].key)):
            count = given.left
            if count > left:
                # At least one token, and what is left after them is more than the tail.
                count = min(left, given.left - given.tail)
                count = given.left if count < 1 and not found else count
            if count < 1 or left < 1:
                break
            longest, widest = max(query, padded_query(count)), max(width, rounded(row.length + count))
            if found and (len(found) + 1) * longest * widest > _MOST_PLACES:
                continue
            query, width = longest, widest
            found.append((row, count))
            left -= count
        return sorted(found, key=lambda pair: pair[1] < _left(pair[0]))


class Slots(Rows[R]):
    """Rows sit in slots 0..n-1 without a gap, those that decode before those whose prompt is not at its end."""

    def __init__(self, model: LanguageModel, capacity: Capacity) -> None:
        super().__init__(model)
        self._capacity = capacity
        shape = AttentionShape.of(model.config)
        self.arena = Arena(shape, capacity.tokens, device=model.device, dtype=model.dtype)

    @abstractmethod
    def _begin(self, rows: Sequence[R], states: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Compute what follows the prompts of rows, by the last hidden states (n, d) of each; the function that is
        returned notes it and cannot fail."""

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
        ended = [(row, states) for (row, count), states in zip(parts, states_of, strict=True) if count == _left(row)]
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
    return max(row.reserved, row.length + _left(row)) if row.overflowed or row.input is not None else 0


def _left(row: Slotted) -> int:
    return row.input.left if row.input is not None else 0
