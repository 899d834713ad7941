"""Known text that the answer may turn out to be: what to propose next, and how much of it came true. Pure.

A proposal is only ever verified, never believed, so nothing here can change an answer: it only saves steps.
"""

from __future__ import annotations

from collections.abc import Sequence

# Two equal tokens in a row are taken as "the text is back at the draft".
_ANCHOR = 2
# How far ahead in the draft the text is looked for after it left it: insertions and deletions are short.
_REACH = 24
# Most tokens verified at once after a re-join: a wrong guess then costs little more than a plain step.
MAX_PROPOSAL = 12


class Draft:
    """A draft (token ids) and where in it the answer is, or that it is elsewhere."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._at: int | None = 0
        self._last = 0  # the place where it was left

    def proposal(self, limit: int) -> list[int]:
        """Return the tokens that should come next, at most `limit`; none while the answer is elsewhere."""
        return [] if self._at is None else self._ids[self._at : self._at + limit]

    def follow(self, generated: Sequence[int], count: int) -> None:
        """Note the last `count` tokens of `generated`, which are certain now."""
        for end in range(len(generated) - count + 1, len(generated) + 1):
            self._note(generated, end)

    def _note(self, generated: Sequence[int], end: int) -> None:
        token = generated[end - 1]
        if self._at is not None and self._at < len(self._ids) and self._ids[self._at] == token:
            self._at += 1
            return
        if self._at is not None:
            self._last, self._at = self._at, None
        self._at = self._rejoin(generated[max(0, end - _ANCHOR) : end])

    def _rejoin(self, tail: Sequence[int]) -> int | None:
        """Return the place after the nearest occurrence of `tail` in the draft, around where it was left."""
        if len(tail) < _ANCHOR:
            return None
        low, high = max(0, self._last - _REACH // 2), min(len(self._ids), self._last + _REACH)
        places = [i for i in range(low, high - _ANCHOR + 1) if self._ids[i : i + _ANCHOR] == list(tail)]
        return min(places, key=lambda i: abs(i - self._last)) + _ANCHOR if places else None


def accepted(proposal: Sequence[int], chosen: Sequence[int]) -> int:
    """Return how many tokens of a proposal came true: `chosen[i]` is the model's token at the place of
    `proposal[i]`."""
    for count, (guess, token) in enumerate(zip(proposal, chosen, strict=False)):
        if guess != token:
            return count
    return min(len(proposal), len(chosen))
