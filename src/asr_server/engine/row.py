"""The state of an answer while it is decoded: its certain tokens, the next proposal, and when it ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from asr_server.engine.loops import loop
from asr_server.engine.protocol import Finish

# The text counts as back at the draft once this many tokens in a row match it.
_ANCHOR = 2
# How far ahead the draft is searched for the text after the text left it: insertions and deletions are short.
_REACH = 24
# Most tokens verified at once after a re-join: a wrong guess then costs little more than a plain step.
MAX_PROPOSAL = 12
# Sampling is greedy long before this temperature. Logits divided by a lower one would overflow.
COLDEST = 1e-4
# Search for loops after every eighth token: after each token, it took a twentieth of the host's time in a step.
_SEARCHED = 8


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One row's answer. `note` sets the fields after `beginnings`."""

    key: int
    budget: int  # the most new tokens
    temperature: float = 0.0  # 0 is greedy
    draft: Draft | None = None  # ids that guess the answer; only greedy rows use it
    forced: tuple[int, ...] = ()  # ids that the answer begins with
    beginnings: tuple[tuple[int, ...], ...] = ()  # the answer begins with one of these; empty: with any token
    ids: list[int] = field(default_factory=list)  # generated so far, without the end token
    logprobs: list[float] = field(default_factory=list)  # natural logarithms of probability, one for each of `ids`
    ended: bool = False  # the model ended its answer
    looping: int = 0  # the length of the loop at the end of `ids`, or 0
    passes: int = 0  # forward passes

    @property
    def finished(self) -> bool:
        return self.ended or self.looping > 0 or len(self.ids) >= self.budget

    @property
    def overflowed(self) -> bool:
        """True if its numbers left the range of their format, which makes its answer meaningless."""
        return not all(map(math.isfinite, self.logprobs))

    @property
    def finish(self) -> Finish:
        """Return why the row ended."""
        if self.ended:
            return Finish.END
        return Finish.LOOP if self.looping else Finish.BUDGET

    def proposal(self) -> list[int]:
        """Return the tokens to run in the next pass after the last certain one.

        The first pass runs the whole draft if it begins with the forced tokens, otherwise only the forced tokens. After
        a re-join, a pass runs a few tokens of the draft.
        """
        forced = [] if self.ids else list(self.forced)
        if self.draft is None or self.temperature > 0:
            return forced
        left = max(0, self.budget - len(self.ids) - 1)
        drafted = self.draft.proposal(left if not self.ids else min(left, MAX_PROPOSAL))
        return drafted if drafted[: len(forced)] == forced else forced

    def allowed(self, behind: Sequence[int]) -> set[int]:
        """Return the ids that may follow `ids` and `behind`; empty if any id may."""
        if not self.beginnings:
            return set()
        known = (*self.ids, *behind)
        return {ids[len(known)] for ids in self.beginnings if len(ids) > len(known) and ids[: len(known)] == known}

    def note(self, tokens: Sequence[int], logprobs: Sequence[float], end_ids: Set[int]) -> None:
        """Add the tokens that a pass has made certain, in order. The model chose the last one."""
        self.passes += 1
        before = len(self.ids)
        for token, logprob in zip(tokens, logprobs, strict=True):
            if token in end_ids:
                self.ended = True
                break
            self.ids.append(token)
            self.logprobs.append(logprob)
        if len(self.ids) // _SEARCHED != before // _SEARCHED:
            self.looping = loop(self.ids)
        if self.draft is not None and len(self.ids) > before:
            self.draft.follow(self.ids, len(self.ids) - before)


class Draft:
    """A draft (token ids), and the place in it that the answer has reached, if the answer still follows it.

    The model verifies every proposal, so a draft cannot change an answer: it only saves steps.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = list(ids)
        self._at: int | None = 0
        self._last = 0  # the place where the answer left the draft

    def proposal(self, limit: int) -> list[int]:
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
        """Return the place after the occurrence of `tail` nearest to where the answer left the draft, None if none."""
        if len(tail) < _ANCHOR:
            return None
        low, high = max(0, self._last - _REACH // 2), min(len(self._ids), self._last + _REACH)
        places = [i for i in range(low, high - _ANCHOR + 1) if self._ids[i : i + _ANCHOR] == list(tail)]
        return min(places, key=lambda i: abs(i - self._last)) + _ANCHOR if places else None


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """Keys and values of a row's first tokens, copied."""

    count: int  # how many tokens
    data: Any  # an array with `nbytes`, in the layout of the library that computes with them

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


def accepted(proposal: Sequence[int], chosen: Sequence[int]) -> int:
    """Return how many tokens of a proposal came true: `chosen[i]` is the model's token at the place of
    `proposal[i]`."""
    for count, (guess, token) in enumerate(zip(proposal, chosen, strict=False)):
        if guess != token:
            return count
    return min(len(proposal), len(chosen))
