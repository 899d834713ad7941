"""Rows of Qwen3-ASR's language model: the answers that steps generate, with drafts. Works on tokens only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from asr_server.engine.memory import Capacity, NoRoom
from asr_server.engine.qwen_asr.rows import AnswerRow, Choice, Known, Rows, known_tokens, note
from asr_server.engine.row import COLDEST, KeptTokens
from asr_server.engine.torch import memory
from asr_server.engine.torch.attention import TokenSpan
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import Arena, AttentionShape, Capture, Layout, Pass, PassGraphs, PassShapes

# Logits are made for this many states at a time: for a vocabulary of 151,936 words, 37 MiB in float32.
_STATES = 64


_NOTHING = Known()
# Hidden states (n, d) to logits (n, vocabulary).
Head = Callable[[torch.Tensor], torch.Tensor]
# Logits (n, vocabulary) and a watched id to the likeliest tokens, (n, 3) in the order of `Choice`.
Likeliest = Callable[[torch.Tensor, int], torch.Tensor]


def likeliest(logits: torch.Tensor, watched: int) -> torch.Tensor:
    """Implement `Likeliest` with operations of torch."""
    logits = logits.float()
    return _with_logprobs(logits, logits.argmax(-1), watched)


def _with_logprobs(logits: torch.Tensor, tokens: torch.Tensor, watched: int) -> torch.Tensor:
    """Return tokens (n,), their log-probabilities among all tokens, and the log-probabilities of one watched token."""
    asked = torch.stack([tokens, torch.full_like(tokens, watched)], dim=-1)
    logprobs = logits.gather(-1, asked) - logits.logsumexp(-1, keepdim=True)
    # Every id is exact in a double.
    return torch.cat([tokens[:, None].double(), logprobs.double()], dim=-1)


def choose(
    head: Head, states: torch.Tensor, watched: int, known: Known = _NOTHING, likeliest: Likeliest = likeliest
) -> torch.Tensor:
    """Return the token after each hidden state (n, d): the likeliest one, or the one that follows from `known`.

    The result is on the device, (n, 3) in the order of `Choice`. Log-probabilities are among all tokens.
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
            # Keep "no speech" if it is likeliest, and exclude it otherwise: speech in another language would be lost.
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
    """Wait for the result of `choose`; return each row's choices after its last token and after each proposed token."""
    found = [Choice(int(token), logprob, other) for token, logprob, other in numbers()]
    return [found[begin:end] for begin, end in pairwise(accumulate((1 + len(own) for own in proposals), initial=0))]


@dataclass(frozen=True, slots=True, eq=False)
class _Launched:
    """A launched pass. The `length` of each row of a step counts the token that the step runs, but no proposal."""

    rows: Sequence[AnswerRow]
    proposals: Sequence[list[int]]
    tokens: torch.Tensor  # (n,) int64 on the device: the chosen tokens
    numbers: Callable[[], list[list[float]]]  # see `choices`

    @classmethod
    def of(cls, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], chosen: torch.Tensor) -> _Launched:
        """Return the pass whose result is `chosen`, of which a copy is queued now, before another pass can overwrite
        it."""
        return cls(rows, proposals, chosen[:, 0].long(), memory.download(chosen))


class ArenaDecoder(Rows):
    """Generates answers. Each row has its own range of places in one arena, which rows of any lengths share as long as
    all of them fit. `likeliest`: chooses a token if any token may come."""

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
        self._queued: list[_Launched] = []  # launched steps whose results were not read yet, at most two

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
        # A row that waits for room to grow gets it before new rows begin.
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
        # Nothing fails from here on. A pass that failed before this has moved no row and may be tried again.
        self._note_prompts(parts, found)

    def _begin(self, rows: Sequence[AnswerRow], last: Sequence[torch.Tensor], ahead: bool) -> list[list[Choice]]:
        """Return the choices after the prompts of rows, from the hidden states (n, d) at the end of each prompt."""
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
        """Record steps, before any row is seated, and return how many. `on_each` is called before each."""
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

    def step(self, *, ahead: bool = False) -> None:
        seated = set(self.rows)
        while self._queued and seated.isdisjoint(self._queued[0].rows):
            del self._queued[0]
        if not self._queued:
            self._launch(self.decoding)
        launched = self._queued[0]
        try:
            if ahead and len(self._queued) == 1:
                self._launch_after(self._queued)
            found = choices(launched.numbers, launched.proposals)
        except Exception:
            self._take_back(0)
            raise
        del self._queued[0]
        # Ignore rows that have ended or left since this step was launched.
        kept = [n for n, row in enumerate(launched.rows) if row in seated]
        own = [launched.rows[n] for n in kept]
        note(own, [launched.proposals[n] for n in kept], [found[n] for n in kept], self._end_ids)

    def _queue(self, step: _Launched) -> None:
        for row in step.rows:
            row.length += 1
        self._queued.append(step)

    def _take_back(self, first: int) -> None:
        """Forget the queued steps from `first` on, whose results were not used. Their tokens are run again."""
        for row in (row for step in self._queued[first:] for row in step.rows):
            row.length -= 1
        del self._queued[first:]

    def _launch(self, rows: Sequence[AnswerRow]) -> None:
        """Launch a pass over the last token and the proposed tokens of each row."""
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
        """Launch the step after `launched` passes, whose results are still only on the device. `beginning`: rows whose
        prompts end in these passes.

        Nothing is launched if more must be known first: if a row proposes tokens, is sampled, may not continue with
        every token, or needs more room. Nor is an unrecorded step, which takes the host longer than the device.
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
        # `fill` replaces the ids of rows that are in `launched`.
        recorded = self._graphs.run(spans, [(0, *row.ids)[-1] for row in rows], fill=fill)
        if recorded is not None:
            self._queue(_Launched.of(rows, [[]] * len(rows), recorded[1][: len(rows)]))

    def _choose(self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], hidden: torch.Tensor) -> torch.Tensor:
        """Return the token after each hidden state (n, d), 1 + len(proposal) of each row; see `choose`."""
        begins = accumulate((1 + len(own) for own in proposals), initial=0)
        known = known_tokens(rows, list(begins), proposals)
        return choose(self._head, hidden, self._no_speech_id, known, self._likeliest)

    def _pass(self, spans: Sequence[TokenSpan], ids: Sequence[int] = ()) -> Pass:
        return Pass(self.arena, Layout(self.arena, spans, ids))

    def drop(self, row: AnswerRow) -> None:
        left = _unsafe(row)
        row.input = None  # free this first: the row may leave because memory ran out
        self.rows.remove(row)
        if left:
            self.arena.clear(left)

    def make_room(self, row: AnswerRow) -> None:
        """Give a row the places that it lacks. This may move the row and others. Raises `NoRoom`."""
        tokens = _needed(row)
        if tokens <= len(row.places):
            return
        others = sorted((other for other in self.rows if other is not row), key=lambda other: other.places.start)
        begins = [0, *(other.places.stop for other in others)]
        ends = [*(other.places.start for other in others), self.arena.tokens - 1]
        free = [range(begin, end) for begin, end in zip(begins, ends, strict=True)]
        here = [range(row.places.start, gap.stop) for gap in free if row.places.start in gap]
        # Prefer as many places as planned, at a multiple of `share`: then the row seldom has to be moved, and a
        # recorded pass with padding need not copy the places that it sees.
        share = self._capacity.share
        planned = -(-tokens // share) * share
        even = [range(-(-gap.start // share) * share, gap.stop) for gap in free]
        fitting = [gap for gap in here if len(gap) >= tokens]
        fitting = fitting or [gap for gap in even if len(gap) >= planned] or [gap for gap in free if len(gap) >= tokens]
        found = fitting[0] if fitting else self._room_beside(row, others)
        self._move(row, found[:planned])

    def _room_beside(self, row: AnswerRow, others: Sequence[AnswerRow]) -> range:
        """Move rows after `row` to the end of the arena, and others to its start. Returns the free places in between.

        Raises `NoRoom`.
        """
        if sum(map(_needed, others)) + _needed(row) >= self.arena.tokens:
            raise NoRoom
        begin, end = 0, self.arena.tokens - 1
        behind = [other for other in others if row.places and other.places.start > row.places.start]
        # No row gets more places than it has, or it would overwrite a row that has not been moved yet.
        for other in others[: len(others) - len(behind)]:
            begin = self._move(other, range(begin, begin + min(_needed(other), len(other.places)))).stop
        for other in reversed(behind):
            end = self._move(other, range(end - min(_needed(other), len(other.places)), end)).start
        return range(begin, end)

    def _move(self, row: AnswerRow, places: range) -> range:
        # On a GPU, passes that are already queued run before this copy and before later writes to the row's old places.
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
    """Return the places of a row that may hold infinities or NaNs: all that its passes may have written, even failed
    ones. A row whose prompt has not ended counts too, since nothing is known of its numbers yet."""
    return row.places[: _needed(row)] if row.overflowed or row.input is not None else range(0)


def _is_plain(row: AnswerRow) -> bool:
    """True if the next step needs only the row's next token."""
    limited = any(len(ids) > len(row.ids) for ids in row.beginnings)
    return not (row.temperature or limited or row.length + row.tokens_left >= row.reserved or row.proposal())
