"""Rows of Qwen3-ASR's language model on a CPU: prompts and steps as passes of a compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.memory import Capacity
from asr_server.engine.openvino.compiled_text import CompiledText, NextLogits, Pages, PageSpan, page_count
from asr_server.engine.qwen_asr.answer_row import COLDEST, AnswerRow, Choice, growth, known_tokens, note
from asr_server.engine.row import KeptTokens
from asr_server.engine.rows import RowInput, Rows

Floats = NDArray[np.float32]


class CompiledDecoder(Rows[AnswerRow]):
    """Generates answers. A row has as many pages as it is expected to need, and takes more when its answer is longer.

    `no_speech_id`: the token that means "no speech" where it is the second one of an answer.
    """

    def __init__(self, model: CompiledText, end_ids: frozenset[int], capacity: Capacity, no_speech_id: int = 0) -> None:
        super().__init__(model)
        self._capacity = capacity
        self.pages = Pages(model.page_shapes(), capacity.tokens)
        model.attach(self.pages)
        self._end_ids, self._no_speech_id = end_ids, no_speech_id

    @staticmethod
    def generator(seed: int) -> np.random.Generator:
        """Return the source of chance of a row that is sampled."""
        return np.random.default_rng(seed)

    def embed(self, ids: Sequence[int]) -> Floats:
        """See `Rows`."""
        return self.model.embed(ids)

    def join(self, parts: Sequence[Floats]) -> Floats:
        """See `Rows`. Other encoders than the engine's own make tensors."""
        return np.concatenate([np.asarray(part) for part in parts])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; the system provides them when they are first written."""
        return self.pages.nbytes

    def fits(self, tokens: int, rows: int = 1) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""
        # A row that waits for room to grow has it before others begin.
        promised = sum(max(0, page_count(row.reserved) - len(row.pages)) for row in self.rows)
        return len(self.rows) + rows <= self._capacity.rows and promised + rows * page_count(tokens) <= len(
            self.pages.free
        )

    def seat(self, row: AnswerRow, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a row its pages. The end of `given` is what the row proposes. Raises `NoRoom`."""
        row.proposed = row.proposal()
        row.length = cached.count if cached is not None else 0
        row.reserved = max(row.length + given.left, row.length + given.left - len(row.proposed) + row.expected)
        self._make_room(row, row.reserved)
        if cached is not None:
            self.pages.put(row.pages[: len(cached.data)], cached.data)
        row.input = given
        self.rows.append(row)

    def copy(self, row: AnswerRow, tokens: int) -> KeptTokens:
        """Copy the keys and values of a row's first `tokens`."""
        return KeptTokens(tokens, self.pages.copy(row.pages[: page_count(tokens)]))

    def prefill(self, parts: Sequence[tuple[AnswerRow, int]], *, ahead: bool = False) -> None:
        """See `Rows`."""
        inputs = [row.input for row, _ in parts if row.input is not None]
        embeds = np.concatenate([given.ready[:count] for given, (_, count) in zip(inputs, parts, strict=True)])
        ended = [row for row, count in parts if row.input is not None and row.input.left == count]
        ends = list(accumulate(count for _, count in parts))
        places = [
            place
            for (row, _), end in zip(parts, ends, strict=True)
            if row in ended
            for place in range(end - len(row.proposed) - 1, end)
        ]
        # A graph is asked for at least one token: there is no logit of none.
        following = self.model(embeds, [_span(row, count) for row, count in parts], places or [0])
        found = self._choose(ended, [row.proposed for row in ended], following)
        for given, (row, count) in zip(inputs, parts, strict=True):
            given.skip(count)
            row.length += count
        for row in ended:
            row.input = None
            row.length -= len(row.proposed)
        note(ended, [row.proposed for row in ended], found, self._end_ids)

    def step(self, *rows: AnswerRow, ahead: bool = False) -> None:
        """Run one pass, never ahead: one new token for each row, more where a draft comes true."""
        rows = rows or tuple(self.decoding)
        fed = [row.proposal() for row in rows]
        for row, own in zip(rows, fed, strict=True):
            self._make_room(row, growth(row, row.length + 1 + len(own)))
        ids = [token for row, own in zip(rows, fed, strict=True) for token in (row.ids[-1], *own)]
        spans = [_span(row, 1 + len(own)) for row, own in zip(rows, fed, strict=True)]
        following = self.model(self.model.embed(ids), spans, range(len(ids)))
        found = self._choose(rows, fed, following)
        for row in rows:
            row.length += 1
        note(rows, fed, found, self._end_ids)

    def drop(self, row: AnswerRow) -> None:
        """Take a row out and give its pages back."""
        if row.overflowed or row.input is not None:
            self.pages.clear(row.pages)
        self.rows.remove(row)
        self.pages.give(row.pages)
        row.input, row.pages = None, []

    def _make_room(self, row: AnswerRow, tokens: int) -> None:
        """Give a row the pages that it lacks for `tokens`. Raises `NoRoom`."""
        # A pass over too few pages would write elsewhere: nothing checks that but this.
        row.pages += self.pages.take(max(0, page_count(tokens) - len(row.pages)))

    def _choose(
        self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], following: NextLogits
    ) -> list[list[Choice]]:
        """Return what follows each token that was asked for, of each row."""
        if not rows:
            return []
        counts = [1 + len(own) for own in proposals]
        begins = [0, *accumulate(counts)]
        tokens = following.tokens.copy()
        known = known_tokens(rows, begins, proposals)
        limits = {place: np.array(ids) for place, ids in known.allowed.items() if tokens[place] != self._no_speech_id}
        for place, ids in limits.items():
            tokens[place] = ids[following.logits[place, ids].argmax()]
        for row, end in zip(rows, begins[1:], strict=True):
            if row.temperature:
                # A sampled row has no draft: only the last of its places is open.
                tokens[end - 1] = _drawn(row, following.logits[end - 1], limits.get(end - 1))
        for place, token in known.forced.items():
            tokens[place] = token
        places = range(len(tokens))
        logprobs = following.logits[places, tokens] - following.lse
        watched = following.logits[:, self._no_speech_id] - following.lse
        found = [Choice(*one) for one in zip(tokens.tolist(), logprobs.tolist(), watched.tolist(), strict=True)]
        return [found[begin:end] for begin, end in pairwise(begins)]


def _span(row: AnswerRow, count: int) -> PageSpan:
    return PageSpan(row.pages, row.length, count)


def _drawn(row: AnswerRow, logits: NDArray[np.float32], only: NDArray[np.int64] | None) -> int:
    """Draw a token by its probability, of some or of all."""
    of = (logits if only is None else logits[only]).astype(np.float64) / max(row.temperature, COLDEST)
    weights = np.exp(of - of.max())
    assert isinstance(row.generator, np.random.Generator)
    drawn = int(row.generator.choice(len(weights), p=weights / weights.sum()))
    return drawn if only is None else int(only[drawn])
