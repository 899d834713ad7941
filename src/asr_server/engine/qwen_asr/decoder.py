"""Rows of Qwen3-ASR's language model: the answers that steps generate, with drafts. Works on tokens only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from asr_server.engine.memory import Capacity
from asr_server.engine.qwen_asr.answer_row import COLDEST, AnswerRow, Choice, Known, growth, known_tokens, note
from asr_server.engine.row import KeptTokens
from asr_server.engine.rows import RowInput
from asr_server.engine.torch.language_model import LanguageModel
from asr_server.engine.torch.passes import (
    Capture,
    Layout,
    Pass,
    PassGraphs,
    TokenSpan,
    prompt_shapes,
    step_shapes,
)
from asr_server.engine.torch.slots import Slots

# Logits are made for this many states at a time: of a vocabulary of 151,936 words, 37 MiB in float32.
_STATES = 64


@dataclass(frozen=True, slots=True)
class Draw:
    """A place where a token is drawn."""

    place: int  # number of the hidden state
    temperature: float  # above 0
    generator: torch.Generator | None


_NOTHING = Known()


def choose(
    head: Callable[[torch.Tensor], torch.Tensor],
    states: torch.Tensor,
    watched: int,
    draws: Sequence[Draw] = (),
    known: Known = _NOTHING,
) -> torch.Tensor:
    """Return what follows each of the hidden states (n, d): the likeliest token but for `draws` and what is `known`.

    On the device, (n, 3) as `choices` reads it. Log-probabilities are those among all tokens.
    """
    found = []
    for begin in range(0, len(states), _STATES):
        logits = head(states[begin : begin + _STATES]).float()
        tokens = logits.argmax(-1)
        limited = {
            place - begin: _only(logits[place - begin], ids)
            for place, ids in known.allowed.items()
            # No speech stays no speech. It is no way out for speech in another language, whose words would be lost.
            if begin <= place < begin + _STATES and int(tokens[place - begin]) != watched
        }
        for place, only in limited.items():
            tokens[place] = only.argmax()
        for draw in draws:
            if begin <= draw.place < begin + _STATES:
                of = limited.get(draw.place - begin, logits[draw.place - begin])
                weights = (of / max(draw.temperature, COLDEST)).softmax(-1)
                tokens[draw.place - begin] = torch.multinomial(weights, 1, generator=draw.generator)[0]
        forced = {place - begin: token for place, token in known.forced.items() if begin <= place < begin + _STATES}
        if forced:
            places, ids = torch.tensor([list(forced), list(forced.values())], device=tokens.device)
            tokens[places] = ids
        asked = torch.stack([tokens, torch.full_like(tokens, watched)], dim=-1)
        logprobs = logits.gather(-1, asked) - logits.logsumexp(-1, keepdim=True)
        # Every id is exact in a double.
        found.append(torch.cat([tokens[:, None].double(), logprobs.double()], dim=-1))
    return torch.cat(found)


def _only(logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of one state with all but these ids impossible."""
    places = torch.tensor(ids, device=logits.device)
    return torch.full_like(logits, -torch.inf).index_copy(0, places, logits[places])


def choices(chosen: torch.Tensor) -> list[Choice]:
    """Return what `choose` found in the host's memory, with one transfer."""
    return [Choice(int(token), logprob, other) for token, logprob, other in chosen.tolist()]


# Hidden states (n, d) to logits (n, vocabulary).
Head = Callable[[torch.Tensor], torch.Tensor]


class SlotDecoder(Slots[AnswerRow]):
    """Generates answers. `no_speech_id`: the token that means "no speech" where it is the second one of an answer."""

    def __init__(
        self, model: LanguageModel, head: Head, end_ids: frozenset[int], capacity: Capacity, no_speech_id: int = 0
    ) -> None:
        super().__init__(model, capacity)
        self._head = head
        self._end_ids = end_ids
        self._no_speech_id = no_speech_id
        self._graphs: PassGraphs | None = None  # recorded steps

    def generator(self, seed: int) -> torch.Generator:
        """Return the source of chance of a row that is sampled."""
        return torch.Generator(self.model.device).manual_seed(seed)

    def seat(self, row: AnswerRow, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a row a slot, as `Slots.seat` does. The end of `given` is what the row proposes."""
        row.proposed = row.proposal()
        kept = cached.count if cached is not None else 0
        row.reserved = kept + given.left - len(row.proposed) + row.expected
        super().seat(row, given, cached)

    def _begin(self, rows: Sequence[AnswerRow], states: Sequence[torch.Tensor]) -> Callable[[], None]:
        proposals = [row.proposed for row in rows]
        found = self._choose(
            rows, proposals, [own[-len(row.proposed) - 1 :] for row, own in zip(rows, states, strict=True)]
        )

        def note() -> None:
            for row in rows:
                row.length -= len(row.proposed)
            self._note(rows, proposals, found)

        return note

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record the steps of rows that are as long as planned."""
        self.arena.divide(self._capacity.rows, self._capacity.columns, held=[])
        self._graphs = PassGraphs(
            self.arena, lambda aim, _: self._greedy(aim), step_shapes(self.arena), capture, on_each
        )
        return len(self._graphs)

    def record_prompts(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes over prompts after `record`, and return how many."""
        shapes = prompt_shapes(self.arena)
        most = max((shape.tokens for shape in shapes), default=0)
        embeds = torch.zeros(most, self.model.config.hidden_size, device=self.model.device, dtype=self.model.dtype)
        self._prompts = PassGraphs(self.arena, self._states, shapes, capture, on_each, embeds=embeds)
        return len(self._prompts)

    def _states(self, aim: Pass, embeds: torch.Tensor | None) -> tuple[torch.Tensor]:
        assert embeds is not None
        return (self.model(embeds, aim.positions, aim.attend),)

    def _hidden(self, aim: Pass) -> torch.Tensor:
        """Hidden states (n, d) of tokens whose ids are known."""
        return self.model(self.model.embed(aim.ids), aim.positions, aim.attend)

    def _greedy(self, aim: Pass) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self._hidden(aim)
        return hidden, choose(self._head, hidden, self._no_speech_id)

    def step(self, *rows: AnswerRow) -> None:
        """Run one pass: one new token for each row, more where a draft comes true."""
        rows = rows or tuple(self.decoding)
        fed = [row.proposal() for row in rows]
        needed = [row.length + 1 + len(own) for row, own in zip(rows, fed, strict=True)]
        for row, tokens in zip(rows, needed, strict=True):
            growth(row, tokens)
        self._make_room(len(self.rows), max(needed))
        first = self.rows.index(rows[0])
        spans = [
            TokenSpan(n, row.length, 1 + len(own)) for n, (row, own) in enumerate(zip(rows, fed, strict=True), first)
        ]
        ids = [token for row, own in zip(rows, fed, strict=True) for token in (row.ids[-1], *own)]
        recorded = self._graphs.run(spans, ids) if self._graphs is not None else None
        if recorded is not None and not any(row.temperature or row.allowed(()) for row in rows):
            chosen, ends = choices(recorded[1][: len(ids)]), list(accumulate(span.count for span in spans))
            found = [chosen[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        else:
            hidden = (
                recorded[0] if recorded is not None else self._hidden(Pass(self.arena, Layout(self.arena, spans, ids)))
            )
            found = self._choose(rows, fed, hidden[: len(ids)].split([span.count for span in spans]))
        for row in rows:
            row.length += 1
        self._note(rows, fed, found)

    def _choose(
        self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], hidden: Sequence[torch.Tensor]
    ) -> list[list[Choice]]:
        """Return what follows each of the hidden states (1 + len(proposal), d) of each row."""
        if not rows:
            return []
        ends = list(accumulate(len(states) for states in hidden))
        begins = [0, *ends]
        # A sampled row has no draft: only the last of its states is open.
        sampled = [(row, end - 1) for row, end in zip(rows, ends, strict=True) if row.temperature]
        draws = [Draw(place, row.temperature, row.generator) for row, place in sampled]
        known = known_tokens(rows, begins, proposals)
        chosen = choices(choose(self._head, torch.cat(list(hidden)), self._no_speech_id, draws, known))
        return [chosen[begin:end] for begin, end in zip(begins, ends, strict=False)]

    def _note(self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], found: Sequence[list[Choice]]) -> None:
        """See `note`."""
        note(rows, proposals, found, self._end_ids)
