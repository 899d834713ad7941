"""Rows of Qwen3-ASR's language model: the answers that steps generate, with drafts. Works on tokens only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from asr_server.engine.memory import Capacity, NoRoom
from asr_server.engine.qwen_asr.rows import (
    COLDEST,
    AnswerRow,
    Choice,
    Known,
    Rows,
    known_tokens,
    note,
)
from asr_server.engine.row import KeptTokens
from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import Arena, AttentionShape, Capture, Layout, Pass, PassGraphs, PassShapes

# Logits are made for this many states at a time: of a vocabulary of 151,936 words, 37 MiB in float32.
_STATES = 64


_NOTHING = Known()
# Hidden states (n, d) to logits (n, vocabulary).
Head = Callable[[torch.Tensor], torch.Tensor]
# Logits (n, vocabulary), and an id that is watched, to (n, 3) in the order of `Choice`, of the likeliest tokens.
Likeliest = Callable[[torch.Tensor, int], torch.Tensor]


def likeliest(logits: torch.Tensor, watched: int) -> torch.Tensor:
    """Implements `Likeliest` by operations of torch."""
    logits = logits.float()
    return _with_logprobs(logits, logits.argmax(-1), watched)


def _with_logprobs(logits: torch.Tensor, tokens: torch.Tensor, watched: int) -> torch.Tensor:
    """Return tokens (n,), their log-probabilities among all tokens, and the log-probabilities of one watched token."""
    asked = torch.stack([tokens, torch.full_like(tokens, watched)], dim=-1)
    logprobs = logits.gather(-1, asked) - logits.logsumexp(-1, keepdim=True)
    # Every id is exact in a double.
    return torch.cat([tokens[:, None].double(), logprobs.double()], dim=-1)


def choose(
    head: Head,
    states: torch.Tensor,
    watched: int,
    known: Known = _NOTHING,
    likeliest: Likeliest = likeliest,
) -> torch.Tensor:
    """Return what follows each of the hidden states (n, d): the likeliest token, or what `known` says instead.

    On the device, (n, 3) in the order of `Choice`. Log-probabilities are those among all tokens.
    """
    found = []
    for begin in range(0, len(states), _STATES):
        logits = head(states[begin : begin + _STATES])
        if not (known.sampled or known.allowed or known.forced):
            found.append(likeliest(logits, watched))
            continue
        logits = logits.float()
        tokens = logits.argmax(-1)
        limited = {
            place - begin: _only(logits[place - begin], ids)
            for place, ids in known.allowed.items()
            # No speech stays no speech. It is no way out for speech in another language, whose words would be lost.
            if begin <= place < begin + _STATES and int(tokens[place - begin]) != watched
        }
        for place, only in limited.items():
            tokens[place] = only.argmax()
        for place, row in known.sampled.items():
            if begin <= place < begin + _STATES:
                of = limited.get(place - begin, logits[place - begin])
                weights = (of / max(row.temperature, COLDEST)).softmax(-1)
                tokens[place - begin] = torch.multinomial(weights, 1, generator=row.generator)[0]
        forced = {place - begin: token for place, token in known.forced.items() if begin <= place < begin + _STATES}
        if forced:
            places, ids = torch.tensor([list(forced), list(forced.values())], device=tokens.device)
            tokens[places] = ids
        found.append(_with_logprobs(logits, tokens, watched))
    return torch.cat(found)


def _only(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of one state with all but these ids impossible."""
    places = torch.tensor(ids, device=logits.device)
    return torch.full_like(logits, -torch.inf).index_copy(0, places, logits[places])


def choices(numbers: Callable[[], list[list[float]]], proposals: Sequence[list[int]]) -> list[list[Choice]]:
    """Wait for what `choose` found, and return for each row what follows its last token and those that it proposes."""
    found = [Choice(int(token), logprob, other) for token, logprob, other in numbers()]
    return [found[begin:end] for begin, end in pairwise(accumulate((1 + len(own) for own in proposals), initial=0))]


@dataclass(frozen=True, slots=True, eq=False)
class _Launched:
    """A pass that was launched. Each row of a step counts the token that it runs, but no proposal, in its `length`."""

    rows: Sequence[AnswerRow]
    proposals: Sequence[list[int]]
    tokens: torch.Tensor  # (n,) int64 on the device: those that were chosen
    numbers: Callable[[], list[list[float]]]  # see `choices`

    @classmethod
    def of(cls, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], chosen: torch.Tensor) -> _Launched:
        """Return the pass of which the device computes `chosen`. This is copied now, before another pass can overwrite
        it."""
        return cls(rows, proposals, chosen[:, 0].long(), memory.download(chosen))


class ArenaDecoder(Rows):
    """Generates answers. Each row has a range of places of its own in one arena, which rows of any lengths share as
    long as all of them fit. `likeliest`: what chooses a token where any may come."""

    def __init__(
        self,
        model: LanguageModel,
        head: Head,
        end_ids: frozenset[int],
        capacity: Capacity,
        no_speech_id: int = 0,
        likeliest: Likeliest = likeliest,
    ) -> None:
        super().__init__(model, end_ids, capacity, no_speech_id)
        self.device = str(model.device)
        self.arena = Arena(AttentionShape.of(model.config), capacity.tokens, device=model.device, dtype=model.dtype)
        self._shapes = PassShapes(self.arena, capacity.rows, capacity.share)
        self._head, self._likeliest = head, likeliest
        self._prompts: PassGraphs | None = None  # recorded passes over prompts
        self._graphs: PassGraphs | None = None  # recorded steps
        self._queued: list[_Launched] = []  # steps that were launched and not read, two at most

    def computing(self) -> AbstractContextManager[Any]:
        return torch.inference_mode()

    def figures(self) -> dict[str, Any]:
        return memory.gpu_figures(self.model.device)

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.model.device).manual_seed(seed)

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        return self.model.embed(memory.upload(torch.tensor(ids, dtype=torch.long), self.model.device))

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts))

    def fits(self, tokens: int) -> bool:
        # A row that waits for room to grow has it before others begin.
        promised = sum(map(_needed, self.rows)) + tokens
        return len(self.rows) < self._capacity.rows and promised < self.arena.tokens

    def _put(self, row: AnswerRow, cached: KeptTokens) -> None:
        self.arena.put(row.places.start, cached.data)

    def copy(self, row: AnswerRow, tokens: int) -> KeptTokens:
        return KeptTokens(tokens, self.arena.copy(row.places.start, tokens))

    def prefill(self, parts: Sequence[tuple[AnswerRow, int]], *, ahead: bool = False) -> None:
        spans = [TokenSpan(row.places.start, row.length, count) for row, count in parts]
        embeds = self._ready(parts)
        recorded = self._prompts.run(spans, embeds=embeds) if self._prompts is not None else None
        hidden = recorded[0][: len(embeds)] if recorded is not None else self.model(embeds, self._pass(spans))
        states_of = hidden.split([count for _, count in parts])
        ended = [(row, own) for (row, count), own in zip(parts, states_of, strict=True) if count == row.tokens_left]
        begun = [row for row, _ in ended]
        found = self._begin(begun, [own[-len(row.proposed) - 1 :] for row, own in ended], ahead) if begun else []
        # From here on nothing fails: a pass that does has moved no row, and may be tried again.
        self._note_prompts(parts, found)

    def _begin(self, rows: Sequence[AnswerRow], last: Sequence[torch.Tensor], ahead: bool) -> list[list[Choice]]:
        """Return what follows the prompts of rows, by the hidden states (n, d) at the end of each."""
        proposals, before = [row.proposed for row in rows], len(self._queued)
        begun = _Launched.of(rows, proposals, self._choose(rows, proposals, torch.cat(list(last))))
        try:
            if ahead:
                self._launch_after([*self._queued[-1:], begun], rows)
            return choices(begun.numbers, proposals)
        except Exception:
            self._take_back(before)
            raise

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        shapes = self._shapes
        self._graphs = PassGraphs(
            self.arena, lambda aim, _: self.greedy(aim), shapes.steps(), shapes.step, capture, on_each
        )
        return len(self._graphs)

    def record_prompts(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes over prompts, and return how many."""
        shapes = self._shapes.prompts()
        most = max((shape.tokens for shape in shapes), default=0)
        embeds = torch.zeros(most, self.model.config.hidden_size, device=self.model.device, dtype=self.model.dtype)
        self._prompts = PassGraphs(
            self.arena, self._states, shapes, self._shapes.prompt, capture, on_each, embeds=embeds
        )
        return len(self._prompts)

    def _states(self, aim: Pass, embeds: torch.Tensor | None) -> tuple[torch.Tensor]:
        assert embeds is not None
        return (self.model(embeds, aim),)

    def _hidden(self, aim: Pass) -> torch.Tensor:
        return self.model(self.model.embed(aim.ids), aim)

    def greedy(self, aim: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._hidden(aim)
        return hidden, choose(self._head, hidden, self._no_speech_id, likeliest=self._likeliest)

    def step(self, *rows: AnswerRow, ahead: bool = False) -> None:
        seated = set(self.rows)
        while self._queued and seated.isdisjoint(self._queued[0].rows):
            del self._queued[0]
        if not self._queued:
            self._launch(rows or tuple(self.decoding))
        launched = self._queued[0]
        try:
            if ahead and len(self._queued) == 1:
                self._launch_after(self._queued)
            found = choices(launched.numbers, launched.proposals)
        except Exception:
            self._take_back(0)
            raise
        del self._queued[0]
        # Rows that have ended or left since this step was launched are in it for nothing.
        kept = [n for n, row in enumerate(launched.rows) if row in seated]
        own = [launched.rows[n] for n in kept]
        note(own, [launched.proposals[n] for n in kept], [found[n] for n in kept], self._end_ids)

    def _queue(self, step: _Launched) -> None:
        for row in step.rows:
            row.length += 1
        self._queued.append(step)

    def _take_back(self, first: int) -> None:
        """Forget the queued steps from this one on, which were not made: their tokens are run again."""
        for row in (row for step in self._queued[first:] for row in step.rows):
            row.length -= 1
        del self._queued[first:]

    def _launch(self, rows: Sequence[AnswerRow]) -> None:
        """Launch a pass over the last token of each row and what it proposes."""
        fed, ids = self._next_ids(rows)
        spans = [TokenSpan(row.places.start, row.length, 1 + len(own)) for row, own in zip(rows, fed, strict=True)]
        recorded = self._graphs.run(spans, ids) if self._graphs is not None else None
        if recorded is not None and not any(row.temperature or row.allowed(()) for row in rows):
            chosen = recorded[1][: len(ids)]
        else:
            hidden = recorded[0][: len(ids)] if recorded is not None else self._hidden(self._pass(spans, ids))
            chosen = self._choose(rows, fed, hidden)
        self._queue(_Launched.of(rows, fed, chosen))

    def _launch_after(self, launched: Sequence[_Launched], beginning: Sequence[AnswerRow] = ()) -> None:
        """Launch the step after passes whose results are on the device only. `beginning`: rows whose prompts end in one
        of them.

        Nothing is launched if more must be known first: a row proposes tokens, is sampled, may not continue with every
        token, or needs more room. Nor is a step that was not recorded, since it takes the host longer than the device.
        """
        rows = [*self.decoding, *beginning]
        place = {row: n for n, row in enumerate(row for one in launched for row in one.rows)}
        if self._graphs is None or not all(map(_is_plain, rows)):
            return
        known = [(n, place[row]) for n, row in enumerate(rows) if row in place]
        tokens = torch.cat([one.tokens for one in launched])

        def fill(ids: torch.Tensor) -> None:
            targets, sources = memory.upload(torch.tensor(known).T, ids.device)
            ids.index_copy_(0, targets, tokens.index_select(0, sources))

        spans = [TokenSpan(row.places.start, row.length + row.tokens_left, 1) for row in rows]
        # `fill` replaces those of the rows that are in `launched`.
        recorded = self._graphs.run(spans, [(0, *row.ids)[-1] for row in rows], fill=fill)
        if recorded is not None:
            self._queue(_Launched.of(rows, [[]] * len(rows), recorded[1][: len(rows)]))

    def _choose(self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], hidden: torch.Tensor) -> torch.Tensor:
        """Return what follows each of the hidden states (n, d), 1 + len(proposal) of each row; see `choose`."""
        begins = accumulate((1 + len(own) for own in proposals), initial=0)
        known = known_tokens(rows, list(begins), proposals)
        return choose(self._head, hidden, self._no_speech_id, known, self._likeliest)

    def _pass(self, spans: Sequence[TokenSpan], ids: Sequence[int] = ()) -> Pass:
        return Pass(self.arena, Layout(self.arena, spans, ids))

    def drop(self, row: AnswerRow) -> None:
        left = _unsafe(row)
        row.input = None  # freed first: memory may be why it leaves
        self.rows.remove(row)
        if left:
            self.arena.clear(left)

    def make_room(self, row: AnswerRow) -> None:
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

    def _room_beside(self, row: AnswerRow, others: Sequence[AnswerRow]) -> range:
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

    def _move(self, row: AnswerRow, places: range) -> range:
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


def _needed(row: AnswerRow) -> int:
    return max(row.reserved, row.length + row.tokens_left)


def _unsafe(row: AnswerRow) -> range:
    """Return the places of a row that may hold what is no number: all that its passes may have written, also those that
    failed. Nothing is known yet of a row whose prompt is not at its end."""
    return row.places[: _needed(row)] if row.overflowed or row.input is not None else range(0)


def _is_plain(row: AnswerRow) -> bool:
    """True if the next step needs nothing of a row but its next token."""
    limited = any(len(ids) > len(row.ids) for ids in row.beginnings)
    return not (row.temperature or limited or row.length + row.tokens_left >= row.reserved or row.proposal())
