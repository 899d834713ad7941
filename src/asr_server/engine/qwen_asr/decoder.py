"""Rows of a language model over one arena: seat some, prefill and step them, drop one. Works on tokens only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from asr_server.engine.draft import accepted
from asr_server.engine.qwen_asr.capacity import Capacity
from asr_server.engine.qwen_asr.language_model import LanguageModel
from asr_server.engine.qwen_asr.windows import Window
from asr_server.engine.row import Row
from asr_server.engine.torch.arena import Arena, AttentionShape, rounded
from asr_server.engine.torch.passes import Layout, Pass, Span
from asr_server.engine.torch.sampling import Choice, Draw, Known, choices, choose
from asr_server.engine.torch.step_graphs import Capture, StepGraphs

# Tokens for which an answer gets room at a time, once it is longer than was expected.
_GROWTH = 64
# Hidden states (n, d) to logits (n, vocabulary).
Head = Callable[[torch.Tensor], torch.Tensor]


class NoRoom(MemoryError):
    """Rows became longer than the arena can hold together."""


class RowInput:
    """The part of a row's prompt that is not run yet, in embeddings (n, d); those of audio are made when they are
    needed.

    `ready` are those that are made, `windows` the audio after them, and `after` what follows the audio. The last `tail`
    tokens have to be run in one pass.
    """

    def __init__(self, ready: torch.Tensor, windows: Sequence[Window], after: torch.Tensor, tail: int) -> None:
        self.ready, self.windows, self.tail = ready, list(windows), tail
        self._after = after
        self.left = len(ready) + sum(window.tokens for window in windows) + len(after)
        self.add([])

    def missing(self, count: int) -> list[Window]:
        """Return the windows without which the next `count` tokens cannot be run."""
        wanted, length = [], len(self.ready)
        for window in self.windows:
            if length >= min(count, self.left - len(self._after)):
                break
            wanted.append(window)
            length += window.tokens
        return wanted

    def add(self, audio: Sequence[torch.Tensor]) -> None:
        """The embeddings of the next windows."""
        self.ready = torch.cat([self.ready, *audio])
        del self.windows[: len(audio)]
        if not self.windows:
            self.ready, self._after = torch.cat([self.ready, self._after]), self._after[:0]

    def skip(self, count: int) -> None:
        """Forget the next `count`, which have been run."""
        self.ready = self.ready[count:]
        self.left -= count


@dataclass(slots=True, eq=False, kw_only=True)
class SlotRow(Row):
    """A row in a slot."""

    generator: torch.Generator | None = None  # the source of chance where it is sampled
    watched: bool = False  # the probability that nobody speaks is wanted
    expected: int = 0  # new tokens that it will hardly exceed
    urgent: bool = False  # its prompt is run before those of others
    length: int = 0  # set by the decoder: tokens in the arena
    no_speech_logprob: float | None = None  # set by the decoder, if it is wanted
    # set by the decoder: what is left of its prompt with the tokens `proposed` after it, None once it decodes
    input: RowInput | None = None
    proposed: list[int] = field(default_factory=list)
    reserved: int = 0  # set by the decoder: tokens that its slot has to have room for


class SlotDecoder:
    """Rows sit in slots 0..n-1 without a gap, those that decode before those whose prompt is not at its end.

    `no_speech_id`: the token that means "no speech" where it is the second one of an answer.
    """

    def __init__(
        self, model: LanguageModel, head: Head, end_ids: frozenset[int], capacity: Capacity, no_speech_id: int = 0
    ) -> None:
        self._model = model
        self._head = head
        self._end_ids = end_ids
        self._no_speech_id = no_speech_id
        self._graphs: StepGraphs | None = None
        self._capacity = capacity
        shape = AttentionShape.of(model.config)
        self.arena = Arena(shape, capacity.tokens, device=model.device, dtype=model.dtype)
        self.rows: list[SlotRow] = []

    @property
    def decoding(self) -> list[SlotRow]:
        """Rows that `step` moves."""
        return [row for row in self.rows if row.input is None]

    def fits(self, rows: int, tokens: int) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""
        total = len(self.rows) + rows
        return total <= self._capacity.rows and self._division(total, tokens) is not None

    def seat(self, row: SlotRow, given: RowInput, cached: torch.Tensor | None) -> None:
        """Give a row a slot. `given` is its prompt after the tokens whose keys and values are in `cached`, if any.

        What the row proposes is the end of it.
        """
        slot, length = len(self.rows), cached.shape[3] if cached is not None else 0
        row.reserved = length + given.left - len(row.proposal()) + row.expected
        self._make_room(slot + 1, row.reserved)
        if cached is not None:
            self.arena.put(slot, cached)
        row.length, row.input, row.proposed = length, given, row.proposal()
        self.rows.append(row)

    def next_input(self, tokens: int) -> list[tuple[SlotRow, int]]:
        """Return rows whose prompts should be run next, and how many tokens of each, about `tokens` in all.

        Rows whose prompts are then at their end are first.
        """
        left, found = tokens, list[tuple[SlotRow, int]]()
        waiting = [(row, row.input) for row in self.rows if row.input is not None]
        for row, given in sorted(waiting, key=lambda pair: (not pair[0].urgent, pair[0].key)):
            count = given.left
            if count > left:
                # At least one token, and what is left after them is more than the tail.
                count = min(left, given.left - given.tail)
                count = given.left if count < 1 and not found else count
            if count < 1 or left < 1:
                break
            found.append((row, count))
            left -= count
        return sorted(found, key=lambda pair: pair[1] < _left(pair[0]))

    def prefill(self, parts: Sequence[tuple[SlotRow, int]]) -> None:
        """Run a number of tokens of each of those rows' prompts, which must be ready, in one pass.

        Rows that come to the end of theirs decode from then on.
        """
        first = len(self.decoding)
        for slot, (row, _) in enumerate(parts, first):
            self._swap(slot, self.rows.index(row))
        spans = [Span(slot, row.length, count) for slot, (row, count) in enumerate(parts, first)]
        inputs = [row.input for row, _ in parts if row.input is not None]
        embeds = torch.cat([given.ready[:count] for given, (_, count) in zip(inputs, parts, strict=True)])
        aim = Pass(self.arena, Layout(self.arena, spans))
        hidden = self._model(embeds, aim.positions, aim.attend).split([count for _, count in parts])
        ended = [(row, states) for (row, count), states in zip(parts, hidden, strict=True) if count == _left(row)]
        rows, proposals = [row for row, _ in ended], [row.proposed for row, _ in ended]
        found = self._choose(rows, proposals, [states[-len(row.proposed) - 1 :] for row, states in ended])
        # From here on nothing fails: a pass that does has moved no row, and may be tried again.
        for given, (row, count) in zip(inputs, parts, strict=True):
            given.skip(count)
            row.length += count
        for row in rows:
            row.length -= len(row.proposed)
            row.input = None
        self._note(rows, proposals, found)

    def record_steps(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record the steps of rows that are as long as planned, before any is seated, and return their number.
        `on_each` is called before each."""
        self.arena.divide(self._capacity.rows, self._capacity.tokens // self._capacity.rows, held=[])
        self._graphs = StepGraphs(self.arena, self._greedy, capture, on_each)
        return len(self._graphs)

    def _hidden(self, aim: Pass) -> torch.Tensor:
        """Hidden states (n, d) of tokens whose ids are known."""
        return self._model(self._model.embed(aim.ids), aim.positions, aim.attend)

    def _greedy(self, aim: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._hidden(aim)
        return hidden, choose(self._head, hidden, self._no_speech_id)

    def step(self) -> None:
        """Run one pass for all rows that decode and are unfinished: one new token each, more where a draft comes
        true."""
        rows = self.decoding
        fed = [row.proposal() for row in rows]
        needed = [row.length + 1 + len(own) for row, own in zip(rows, fed, strict=True)]
        for row, tokens in zip(rows, needed, strict=True):
            if tokens > row.reserved:
                # Some more, also where there is no room: no other row may be seated meanwhile.
                row.reserved = tokens + _GROWTH
        self._make_room(len(self.rows), max(needed))
        spans = [Span(slot, row.length, 1 + len(own)) for slot, (row, own) in enumerate(zip(rows, fed, strict=True))]
        ids = [token for row, own in zip(rows, fed, strict=True) for token in (row.ids[-1], *own)]
        layout = Layout(self.arena, spans, ids)
        recorded = self._graphs.run(layout) if self._graphs is not None else None
        if recorded is not None and not any(row.temperature or row.allowed(()) for row in rows):
            found = [[choice] for choice in choices(recorded[1][: len(ids)])]
        else:
            hidden = recorded[0] if recorded is not None else self._hidden(Pass(self.arena, layout))
            found = self._choose(rows, fed, hidden[: len(ids)].split([span.count for span in spans]))
        for row in rows:
            row.length += 1
        self._note(rows, fed, found)

    def drop(self, row: SlotRow) -> None:
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
        """Slots and columns for `rows` rows, one of them of `tokens`; as they are while they suffice."""
        columns = 1 + max([tokens, *(max(row.reserved, row.length) for row in self.rows)])
        arena, planned = self.arena, self._capacity.tokens // self._capacity.rows
        if self.rows and rows <= arena.slots and columns <= arena.columns:
            return arena.slots, arena.columns
        if columns <= planned:
            return self._capacity.rows, planned
        columns = min(rounded(columns), arena.tokens)
        if rows == 1:
            return (arena.tokens // columns, columns) if tokens < columns else None
        return (arena.tokens // columns, columns) if rows * columns <= arena.tokens else None

    def _choose(
        self, rows: Sequence[SlotRow], proposals: Sequence[list[int]], hidden: Sequence[torch.Tensor]
    ) -> list[list[Choice]]:
        """Return what follows each of the hidden states (1 + len(proposal), d) of each row."""
        if not rows:
            return []
        ends = list(accumulate(len(states) for states in hidden))
        begins = [0, *ends]
        # A sampled row has no draft: only the last of its states is open.
        sampled = [(row, end - 1) for row, end in zip(rows, ends, strict=True) if row.temperature]
        draws = [Draw(place, row.temperature, row.generator) for row, place in sampled]
        # The log-probability of forced tokens is asked too: they are words that callers see.
        first = [(row, begin) for row, begin in zip(rows, begins, strict=False) if not row.ids]
        forced = {begin + n: token for row, begin in first for n, token in enumerate(row.forced)}
        known = Known(forced, _allowed(rows, begins, proposals))
        chosen = choices(choose(self._head, torch.cat(list(hidden)), self._no_speech_id, draws, known))
        return [chosen[begin:end] for begin, end in zip(begins, ends, strict=False)]

    def _note(self, rows: Sequence[SlotRow], proposals: Sequence[list[int]], found: Sequence[list[Choice]]) -> None:
        """Note what came of a pass: the proposed tokens that came true and one more."""
        for row, proposal, own in zip(rows, proposals, found, strict=True):
            count = accepted(proposal, [choice.token for choice in own]) + 1
            place = 1 - len(row.ids)
            if row.watched and 0 <= place < count:
                row.no_speech_logprob = own[place].watched
            row.length += count - 1
            taken = own[:count]
            row.note([choice.token for choice in taken], [choice.logprob for choice in taken], self._end_ids)


def _allowed(
    rows: Sequence[SlotRow], begins: Sequence[int], proposals: Sequence[list[int]]
) -> dict[int, tuple[int, ...]]:
    """Return, for the places where not every id may come, the ids that may."""
    limited = [(row, begin, own) for row, begin, own in zip(rows, begins, proposals, strict=False) if row.beginnings]
    return {
        begin + n: tuple(sorted(ids))
        for row, begin, own in limited
        for n in range(1 + len(own))
        if (ids := row.allowed(own[:n]))
    }


def _overflow(row: SlotRow) -> int:
    """Return how many columns of a slot may hold numbers that are not finite, which a mask does not hide from the
    slot's next row: all that its passes may have written, those that failed included. Nothing is known yet of a row
    whose prompt is not at its end."""
    return max(row.reserved, row.length + _left(row)) if row.overflowed or row.input is not None else 0


def _left(row: SlotRow) -> int:
    return row.input.left if row.input is not None else 0
