"""A batch in simulated time: rows take the steps that the engine's would, and each step takes its measured time.

It stands for `engine.qwen.engine.QwenEngine` behind the real engine thread: a step decodes for all rows whose prompts
were run, then runs prompts, urgent rows first, as many tokens as `PrefillPolicy` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from asr_server.engine.memory import PrefillPolicy
from asr_server.schedule.ports import Outcome, RowDelta, RowDone
from asr_server_sizing.profile import Profile

# The figures that the policy learns by the passes after a load.
_WARM_UP_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Work:
    """A row's item."""

    tokens: int  # of prompt and audio, that are run
    passes: int  # in which its answer is complete, including that of the prompt


@dataclass(slots=True, eq=False)
class _Row:
    key: int
    urgent: bool
    tokens: int  # of its prompt, to be run
    passes: int  # to come


class SimulatedBatch:
    """Implements `scheduling.ports.Batch`. `spend` lets seconds of the engine's time pass."""

    loaded = True
    fits = True

    def __init__(self, profile: Profile, spend: Callable[[float], None]) -> None:
        self._costs = profile.steps
        self._slots = profile.slots
        self._spend = spend
        self._rows: dict[int, _Row] = {}
        self._begin_s: float | None = None
        self._policy = PrefillPolicy()
        self._policy.note_step(self._costs.decode(1))
        self._policy.note_prefill(_WARM_UP_TOKENS, self._costs.prefill(_WARM_UP_TOKENS))

    @property
    def free_slots(self) -> int:
        """The free slots; 0 while as much waits as one step may prefill."""
        return self._slots_beside([row for row in self._rows.values() if row.tokens])

    @property
    def urgent_slots(self) -> int:
        """The free slots if only urgent rows wait."""
        return self._slots_beside([row for row in self._rows.values() if row.tokens and row.urgent])

    def _slots_beside(self, waiting: Sequence[_Row]) -> int:
        if waiting and sum(row.tokens for row in waiting) >= self._policy.tokens(self._begin_s):
            return 0
        return self._slots - len(self._rows)

    def load(self) -> None:
        """Do nothing: the batch is always loaded."""

    def unload(self) -> None:
        """Do nothing: the batch is always loaded."""

    def admit(self, key: int, item: Work, urgent: bool = False) -> None:
        """Take a row in."""
        self._rows[key] = _Row(key, urgent, item.tokens, item.passes)

    def drop(self, key: int) -> None:
        """Forget a row."""
        self._rows.pop(key, None)

    def step(self, begin_s: float | None = None) -> Iterator[Outcome]:
        """Decode for every row whose prompt was run, then run prompts for about `begin_s`."""
        self._begin_s = begin_s
        decoding = [row for row in self._rows.values() if not row.tokens]
        if decoding:
            took_s = self._costs.decode(len(decoding))
            self._spend(took_s)
            self._policy.note_step(took_s)
            # One delta stands for all of this moment: the engine thread divides the time among the rows that decode.
            yield RowDelta(decoding[0].key, None)
            yield from self._advance(decoding)
        if parts := self._next_input(self._policy.tokens(begin_s)):
            tokens = sum(count for _, count in parts)
            took_s = self._costs.prefill(tokens)
            self._spend(took_s)
            self._policy.note_prefill(tokens, took_s)
            for row, count in parts:
                row.tokens -= count
            begun = [row for row, _ in parts if not row.tokens]
            yield from (RowDelta(row.key, None) for row in begun)
            yield from self._advance(begun)

    def _next_input(self, tokens: int) -> list[tuple[_Row, int]]:
        """Return the rows whose prompts are run next, and how many tokens of each."""
        left, found = tokens, list[tuple[_Row, int]]()
        for row in sorted((row for row in self._rows.values() if row.tokens), key=lambda row: not row.urgent):
            if left <= 0:
                break
            count = min(left, row.tokens)
            found.append((row, count))
            left -= count
        return found

    def _advance(self, rows: Sequence[_Row]) -> Iterator[Outcome]:
        for row in rows:
            row.passes -= 1
            if row.passes <= 0:
                del self._rows[row.key]
                yield RowDone(row.key, None)
