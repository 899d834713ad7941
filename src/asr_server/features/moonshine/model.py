"""The loaded model: audio to encoder states, tokens to logits, and logits to chosen tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from asr_server.core.environment import onnx_session
from asr_server.engine.row import COLDEST
from asr_server.features.moonshine import weights
from asr_server.features.moonshine.decoder import RowCache, TokenDecoder

if TYPE_CHECKING:
    from asr_server.engine.protocol import Written
    from asr_server.engine.row import Row
    from asr_server.features.moonshine.package import ModelFiles
    from asr_server.features.moonshine.weights import Array

# The first convolutions reach over this many samples (127, then 7 of 64 apart, then 3 of 192): shorter audio is padded.
_LEAST_SAMPLES = 895
# Samples that become one state: the strides 64, 3 and 2.
SAMPLES_PER_STATE = 384


BEGIN_ID = 1
END_ID = 2
_BLANK = "\u2581".encode()
_BLANKS = " \t\n\r\v\f"  # what `bytes.strip` removes; `str.strip` removes more
# Ids from here on are not text: they name tasks, which this model does not use.
_FIRST_SPECIAL_ID = 32_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The text of some ids."""

    text: str
    offsets: tuple[int, ...]  # the length of `text` up to and including each id
    pieces: tuple[bytes, ...]  # the bytes that each id writes


class Tokenizer:
    """Reads a `tokenizer.bin`. Raises `ValueError` if it is damaged."""

    def __init__(self, path: Path) -> None:
        pieces = entries(path.read_bytes())
        silent = [b""] * (END_ID + 1), [b""] * (len(pieces) - _FIRST_SPECIAL_ID)
        self._pieces = [*silent[0], *pieces[END_ID + 1 : _FIRST_SPECIAL_ID], *silent[1]]
        self._ids = {piece: number for number, piece in reversed(list(enumerate(self._pieces))) if piece}
        self._longest = max(map(len, self._ids))

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, ids: Sequence[int]) -> Reading:
        """Return the text of an answer, without blanks around it. An unfinished character at the end is left out."""
        pieces = [self._pieces[token] for token in ids]
        begun = next((n for n, piece in enumerate(pieces) if piece.strip()), len(pieces))
        pieces[: begun + 1] = [b""] * begun + [piece.lstrip() for piece in pieces[begun : begun + 1]]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        written = [decoder.decode(piece) for piece in pieces]
        text = "".join(written).rstrip(_BLANKS)
        return Reading(text, tuple(min(n, len(text)) for n in accumulate(map(len, written))), tuple(pieces))

    def encode(self, text: str) -> list[int]:
        """Return ids that read as `text`: from left to right, the longest piece that fits.

        The model itself may divide a word differently. Raises `ValueError` if no piece fits.
        """
        rest, ids = f" {text.strip()}".encode(), list[int]()
        while rest.strip():
            length = next((n for n in range(self._longest, 0, -1) if rest[:n] in self._ids), 0)
            if not length:
                raise ValueError(f"no token begins with {rest[:1]!r}")
            ids.append(self._ids[rest[:length]])
            rest = rest[length:]
        return ids


def entries(content: bytes) -> list[bytes]:
    """Return the entries of a `tokenizer.bin`: each its length, then its bytes.

    A length below 128 is one byte. A greater one is two: `first - 128 + 128 * second`. Raises `ValueError` if the last
    entry is cut short.
    """
    found, at = [], 0
    while at < len(content):
        length, at = content[at], at + 1
        if length >= 128:
            length, at = length - 128 + 128 * content[at], at + 1
        if at + length > len(content):
            raise ValueError("the last entry is cut short")
        found.append(content[at : at + length].replace(_BLANK, b" "))
        at += length
    return found


class MoonshineModel:
    """Loads all three files. Raises `ValueError`, `KeyError` or what ONNX Runtime raises if one is damaged."""

    end_ids = frozenset({END_ID})

    def __init__(self, files: ModelFiles) -> None:
        self.tokenizer = Tokenizer(files.tokenizer)
        self._encoder = onnx_session(files.encoder, threads=0)
        self.decoder = TokenDecoder(weights.read(files.decoder))
        if self.decoder.vocabulary != len(self.tokenizer):
            raise ValueError("the vocabulary is that of another model")

    def encode_text(self, written: Written, forced: bool) -> tuple[int, ...]:
        """Return the ids of an answer with another model's words, or () if tokens cannot write some of them. An answer
        of this model names no language, whether or not it is `forced`."""
        try:
            return tuple(self.tokenizer.encode(written.text))
        except ValueError:
            return ()

    def encode(self, audio: Array, capacity: int) -> RowCache:
        """Encode audio (n,), 16 kHz, and return the start of a row, with space for `capacity` tokens."""
        padded = np.pad(audio, (0, max(0, _LEAST_SAMPLES - len(audio))))
        inputs = {"input_values": padded[None], "attention_mask": np.ones((1, len(padded)), np.int64)}
        states: Array = self._encoder.run(["last_hidden_state"], inputs)[0][0]
        return self.decoder.cache(states, capacity)

    def forward(self, rows: Sequence[tuple[Row, RowCache]], proposals: Sequence[Sequence[int]]) -> list[Array]:
        """Run each row's last token and the tokens proposed after it, and return logits (1 + proposed, vocabulary) of
        each row."""
        fed = [
            [row.ids[-1] if row.ids else BEGIN_ID, *proposal]
            for (row, _), proposal in zip(rows, proposals, strict=True)
        ]
        logits = self.decoder.forward([cache for _, cache in rows], fed)
        return np.split(logits, np.cumsum([len(own) for own in fed])[:-1])

    def attention(self, audio: Array, ids: Sequence[int]) -> Array:
        """Return how much each of `ids`, and the end, attends to each state of the audio: (layers, heads, ids + 1,
        frames)."""
        seen: list[Array] = []
        self.decoder.forward([self.encode(audio, len(ids) + 1)], [[BEGIN_ID, *ids]], seen)
        return np.stack(seen)

    def choose(self, logits: Array, row: Row, seed: int) -> tuple[list[int], list[float]]:
        """Return the tokens after a row's queries and their log-probabilities. `logits`: (n, vocabulary)."""
        chosen = logits.argmax(-1)
        if row.temperature > 0:  # a sampled row has no draft: only the last of its queries is open
            scaled = (logits[-1] / max(row.temperature, COLDEST)).astype(np.float64)
            odds = np.exp(scaled - scaled.max())
            # Seed by the place in the answer: a row needs no state, and the same seed gives the same answer.
            chance = np.random.default_rng((seed, len(row.ids)))
            chosen[-1] = chance.choice(len(odds), p=odds / odds.sum())
        if row.forced and not row.ids:
            chosen[: len(row.forced)] = row.forced
        highest = logits.max(-1)
        normal = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
        logprobs: list[float] = (logits[np.arange(len(logits)), chosen] - normal).tolist()
        return chosen.tolist(), logprobs
