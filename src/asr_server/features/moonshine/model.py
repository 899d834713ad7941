"""The loaded model: audio to encoder states, tokens to logits, and what is chosen from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asr_server.features.moonshine import weights
from asr_server.features.moonshine.decoder import RowCache, TokenDecoder
from asr_server.features.moonshine.encoder import SAMPLES_PER_STATE, MoonshineEncoder
from asr_server.features.moonshine.tokenizer import BEGIN_ID, END_ID, Tokenizer

if TYPE_CHECKING:
    from asr_server.engine.protocol import Written
    from asr_server.engine.row import Row
    from asr_server.features.moonshine.package import ModelFiles
    from asr_server.features.moonshine.weights import Array

# Sampling is greedy long before this; by less than that, logits cannot be divided.
_COLDEST = 1e-4


class MoonshineModel:
    """Loads all three files. Raises `ValueError`, `KeyError` or what ONNX Runtime raises if one is damaged."""

    end_ids = frozenset({END_ID})

    def __init__(self, files: ModelFiles) -> None:
        self.tokenizer = Tokenizer(files.tokenizer)
        self._encoder = MoonshineEncoder(files.encoder)
        self._decoder = TokenDecoder(weights.read(files.decoder))
        if self._decoder.vocabulary != len(self.tokenizer):
            raise ValueError("the vocabulary is that of another model")

    def encode_text(self, written: Written, forced: bool) -> tuple[int, ...]:
        """Ids of an answer with the words of another model, () where no token begins with some of them. An answer of
        this model names no language, forced or not."""
        try:
            return tuple(self.tokenizer.encode(written.text))
        except ValueError:
            return ()

    def row_bytes(self, samples: int, tokens: int) -> int:
        """Memory of a row of that much audio and that many tokens."""
        return self._decoder.row_bytes(samples // SAMPLES_PER_STATE + 1, tokens)

    def encode(self, audio: Array, capacity: int) -> RowCache:
        """Return the start of a row: audio (n,) encoded, with space for `capacity` tokens."""
        return self._decoder.cache(self._encoder.encode(audio), capacity)

    def forward(self, rows: Sequence[tuple[Row, RowCache]], proposals: Sequence[Sequence[int]]) -> list[Array]:
        """Run each row's last token and the tokens proposed after it, and return logits (1 + proposed, vocabulary) of
        each row."""
        fed = [
            [row.ids[-1] if row.ids else BEGIN_ID, *proposal]
            for (row, _), proposal in zip(rows, proposals, strict=True)
        ]
        logits = self._decoder.forward([cache for _, cache in rows], fed)
        return np.split(logits, np.cumsum([len(own) for own in fed])[:-1])

    def attention(self, audio: Array, ids: Sequence[int]) -> Array:
        """Return how much each of `ids`, and the end, attends to each state of the audio: (layers, heads, ids + 1,
        frames)."""
        seen: list[Array] = []
        self._decoder.forward([self.encode(audio, len(ids) + 1)], [[BEGIN_ID, *ids]], seen)
        return np.stack(seen)

    def choose(self, logits: Array, row: Row, seed: int) -> tuple[list[int], list[float]]:
        """Return the token behind each of a row's queries and its log-probability; logits (n, vocabulary)."""
        chosen = logits.argmax(-1)
        if row.temperature > 0:  # a sampled row has no draft: only the last of its queries is open
            scaled = (logits[-1] / max(row.temperature, _COLDEST)).astype(np.float64)
            odds = np.exp(scaled - scaled.max())
            # By the place in the answer, so that a row needs no state and the same seed gives the same answer.
            chance = np.random.default_rng((seed, len(row.ids)))
            chosen[-1] = chance.choice(len(odds), p=odds / odds.sum())
        if row.forced and not row.ids:
            chosen[: len(row.forced)] = row.forced
        highest = logits.max(-1)
        normal = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
        logprobs: list[float] = (logits[np.arange(len(logits)), chosen] - normal).tolist()
        return chosen.tolist(), logprobs
