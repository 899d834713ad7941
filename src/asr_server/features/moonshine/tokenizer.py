"""Token ids to text. The vocabulary is SentencePiece's: U+2581 stands for a blank, single bytes are tokens too."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

BEGIN_ID = 1
END_ID = 2
_BLANK = "\u2581".encode()
_BLANKS = " \t\n\r\v\f"  # what `bytes.strip` removes; `str.strip` removes more
# From here on no token stands for text: these are names of tasks, and this model uses none.
_FIRST_SPECIAL_ID = 32_000


@dataclass(frozen=True, slots=True)
class Reading:
    """The text of some ids."""

    text: str
    offsets: tuple[int, ...]  # the length of `text` with each id
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
        """Ids that read as `text`: from left to right the longest piece that fits.

        The model itself may divide a word otherwise. Raises `ValueError` if no piece fits.
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
