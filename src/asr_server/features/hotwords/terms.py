"""The terms of a prompt and of hotwords, found in texts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from asr_server.text import words
from asr_server.text.stable_merge import key

# What separates two terms. A dot does so at the end of a word only, as it is part of names such as "node.js".
_SEPARATOR = re.compile(r"[,;、。，；！？\n]|[.!?…](?:\s|$)")


class Terms:
    """The terms of one context: what stands between commas, line breaks and ends of sentences."""

    def __init__(self, context: str) -> None:
        terms = {_keys(words.split(part)) for part in _SEPARATOR.split(context)} - {()}
        self._by_first: dict[str, list[tuple[str, ...]]] = {}
        for term in terms:
            self._by_first.setdefault(term[0], []).append(term)
        self._sorted = sorted(map(" ".join, terms))
        self._longest = max(map(len, terms), default=0)

    def found(self, written: Sequence[str]) -> set[int]:
        """Return the numbers of the words, as `words.split` makes them, that belong to a term.

        The text may be the beginning of another, and end within a term or within one of its words.
        """
        keys, found = _keys(written), set[int]()
        for place, first in enumerate(keys):
            for term in self._by_first.get(first, ()):
                if keys[place : place + len(term)] == term:
                    found.update(range(place, place + len(term)))
        for place in range(max(0, len(keys) - self._longest), len(keys)):
            rest = " ".join(keys[place:])
            at = bisect_left(self._sorted, rest)
            if self._sorted[at : at + 1] and self._sorted[at].startswith(rest):
                found.update(range(place, len(keys)))
                break
        return found


def _keys(written: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(key, written))
