"""Rows of Qwen3-ASR's language model on a CPU: prompts and steps as passes of a compiled graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from asr_server.engine.memory import Capacity
from asr_server.engine.openvino.compiled_text import CompiledText, NextLogits, Pages, PageSpan, page_count
from asr_server.engine.qwen_asr.rows import AnswerRow, Choice, Rows, known_tokens, note
from asr_server.engine.row import COLDEST, KeptTokens

Floats = NDArray[np.float32]


class CompiledDecoder(Rows):
    """Generates answers. A row has as many pages as it is expected to need, and takes more if its answer is longer."""

    def __init__(self, model: CompiledText, end_ids: frozenset[int], capacity: Capacity, no_speech_id: int = 0) -> None:
        super().__init__(model, end_ids, capacity, no_speech_id)
        self.pages = Pages(model.page_shapes(), capacity.tokens)
        model.attach(self.pages)

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def embed(self, ids: Sequence[int]) -> Floats:
        return self.model.embed(ids)

    def join(self, parts: Sequence[Floats]) -> Floats:
        # Encoders other than the engine's own make tensors.
        return np.concatenate([np.asarray(part) for part in parts])

    @property
    def nbytes(self) -> int:
        return self.pages.nbytes

    def fits(self, tokens: int) -> bool:
        # A row that waits for room to grow gets it before new rows begin.
        promised = sum(max(0, page_count(row.reserved) - len(row.pages)) for row in self.rows)
        has_pages = promised + page_count(tokens) <= len(self.pages.free)
        return len(self.rows) < self._capacity.rows and has_pages

    def _put(self, row: AnswerRow, cached: KeptTokens) -> None:
        self.pages.put(row.pages[: len(cached.data)], cached.data)

    def copy(self, row: AnswerRow, tokens: int) -> KeptTokens:
        return KeptTokens(tokens, self.pages.copy(row.pages[: page_count(tokens)]))

    def prefill(self, parts: Sequence[tuple[AnswerRow, int]], *, ahead: bool = False) -> None:
        ended = [row for row, count in parts if count == row.tokens_left]
        ends = list(accumulate(count for _, count in parts))
        places = [
            place
            for (row, _), end in zip(parts, ends, strict=True)
            if row in ended
            for place in range(end - len(row.proposed) - 1, end)
        ]
        # Request the logits of at least one token: a graph cannot return none.
        spans = [PageSpan(row.pages, row.length, count) for row, count in parts]
        following = self.model(self._ready(parts), spans, places or [0])
        found = self._choose(ended, [row.proposed for row in ended], following)
        self._note_prompts(parts, found)

    def step(self, *, ahead: bool = False) -> None:
        rows = self.decoding
        fed, ids = self._next_ids(rows)
        spans = [PageSpan(row.pages, row.length, 1 + len(own)) for row, own in zip(rows, fed, strict=True)]
        following = self.model(self.model.embed(ids), spans, range(len(ids)))
        found = self._choose(rows, fed, following)
        for row in rows:
            row.length += 1
        note(rows, fed, found, self._end_ids)

    def drop(self, row: AnswerRow) -> None:
        if row.overflowed or row.input is not None:
            self.pages.clear(row.pages)
        self.rows.remove(row)
        self.pages.give(row.pages)
        row.input, row.pages = None, []

    def make_room(self, row: AnswerRow) -> None:
        # A pass over too few pages would write elsewhere, and only this prevents it.
        row.pages += self.pages.take(max(0, page_count(row.reserved) - len(row.pages)))

    def _choose(
        self, rows: Sequence[AnswerRow], proposals: Sequence[list[int]], following: NextLogits
    ) -> list[list[Choice]]:
        """Return the choices of each row, after each token whose logits were requested."""
        if not rows:
            return []
        counts = [1 + len(own) for own in proposals]
        begins = [0, *accumulate(counts)]
        tokens = following.tokens.copy()
        known = known_tokens(rows, begins, proposals)
        limits = {place: np.array(ids) for place, ids in known.allowed.items() if tokens[place] != self._no_speech_id}
        for place, ids in limits.items():
            tokens[place] = ids[following.logits[place, ids].argmax()]
        for place, row in known.sampled.items():
            tokens[place] = _drawn(row, following.logits[place], limits.get(place))
        for place, token in known.forced.items():
            tokens[place] = token
        places = range(len(tokens))
        logprobs = following.logits[places, tokens] - following.lse
        watched = following.logits[:, self._no_speech_id] - following.lse
        found = [Choice(*one) for one in zip(tokens.tolist(), logprobs.tolist(), watched.tolist(), strict=True)]
        return [found[begin:end] for begin, end in pairwise(begins)]


def _drawn(row: AnswerRow, logits: NDArray[np.float32], only: NDArray[np.int64] | None) -> int:
    """Sample a token by its probability, among all tokens or among `only`."""
    of = (logits if only is None else logits[only]).astype(np.float64) / max(row.temperature, COLDEST)
    weights = np.exp(of - of.max())
    assert isinstance(row.generator, np.random.Generator)
    drawn = int(row.generator.choice(len(weights), p=weights / weights.sum()))
    return drawn if only is None else int(only[drawn])
