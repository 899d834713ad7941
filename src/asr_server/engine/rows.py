"""Rows of a language model that share passes: prompts that are run, and answers that steps make longer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from asr_server.engine.row import KeptTokens

if TYPE_CHECKING:
    from asr_server.engine.torch.passes import Capture

# An array (n, d): of numpy, or a tensor.
Embeddings = Any


class NoRoom(MemoryError):
    """Rows became longer than there is room for together."""


class RowInput:
    """The part of a row's prompt that is not run yet, in embeddings (n, d); those of audio are made when they are
    needed. `join` puts embeddings one behind the other."""

    def __init__(
        self,
        join: Callable[[Sequence[Embeddings]], Embeddings],
        ready: Embeddings,
        windows: Sequence[Any],
        after: Embeddings,
        tail: int,
    ) -> None:
        self.ready = ready  # the embeddings that are made
        self.windows = list(windows)  # audio after them, each with its number of `tokens`
        self.tail = tail  # tokens at the end that have to be run in one pass
        self._after = after  # embeddings of what follows the audio
        self._join = join
        self.left = len(ready) + sum(window.tokens for window in windows) + len(after)
        self.add([])

    def missing(self, count: int) -> list[Any]:
        """Return the windows without which the next `count` tokens cannot be run."""
        wanted, length = [], len(self.ready)
        for window in self.windows:
            if length >= min(count, self.left - len(self._after)):
                break
            wanted.append(window)
            length += window.tokens
        return wanted

    def add(self, audio: Sequence[Embeddings]) -> None:
        """Add the embeddings of the next windows."""
        del self.windows[: len(audio)]
        parts = [self.ready, *audio]
        if not self.windows:
            parts.append(self._after)
            self._after = self._after[:0]
        self.ready = self._join(parts)

    def skip(self, count: int) -> None:
        """Forget the next `count`, which have been run."""
        self.ready = self.ready[count:]
        self.left -= count


class Slotted(Protocol):
    """A row that can have a place. `length` and `input` are set by `Rows`."""

    key: int
    urgent: bool  # its prompt is run before those of others
    length: int  # tokens whose keys and values are there
    input: RowInput | None  # what is left of its prompt; None once it decodes
    reserved: int  # tokens that it has to have room for

    @property
    def overflowed(self) -> bool:
        """True if its numbers left the range of their format."""


R = TypeVar("R", bound=Slotted)


class Rows(ABC, Generic[R]):
    """Rows with their keys and values: those that decode, and those whose prompt is not at its end.

    `model` has a `dtype`, and calls its `on_layer` inside of passes that may take long.
    """

    device = "cpu"  # where passes run, as in the plan

    def __init__(self, model: Any) -> None:
        self.model = model
        self.rows: list[R] = []

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context in which passes are run."""
        return nullcontext()

    def figures(self) -> dict[str, Any]:
        """Return what is known of the device, as fields of `EngineInfo`."""
        return {}

    def prompt(self, before: Sequence[int], windows: Sequence[Any], after: Sequence[int], tail: int) -> RowInput:
        """Return the prompt of a row, of token ids around audio; see `RowInput`."""
        embeds = self.embed((*before, *after))
        return RowInput(self.join, embeds[: len(before)], windows, embeds[len(before) :], tail)

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Embeddings:
        """Return the embeddings (n, d) of token ids."""

    @abstractmethod
    def join(self, parts: Sequence[Embeddings]) -> Embeddings:
        """Return embeddings one behind the other."""

    @abstractmethod
    def fits(self, tokens: int, rows: int = 1) -> bool:
        """True if `rows` more rows, the longest of `tokens`, can be seated now."""

    @abstractmethod
    def seat(self, row: R, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Give a row its place. `given` is its prompt after the tokens whose keys and values are in `cached`, if
        any."""

    @abstractmethod
    def prefill(self, parts: Sequence[tuple[R, int]], *, ahead: bool = False) -> None:
        """Run a number of tokens of each of those rows' prompts, which must be ready, in one pass.

        Rows that come to the end of theirs decode from then on. `ahead`: as in `step`, for the step after this pass.
        """

    @abstractmethod
    def step(self, *rows: R, ahead: bool = False) -> None:
        """Run one pass for rows that decode and are unfinished, or for all of them. A pass that fails has moved no row.

        `ahead`: the next pass of all rows may be queued before the results of this one are read, where the device
        computes while the host reads.
        """

    @abstractmethod
    def drop(self, row: R) -> None:
        """Take a row out."""

    def record(self, capture: Capture, on_each: Callable[[], None]) -> int:
        """Record passes, before any row is seated, and return how many. `on_each` is called before each."""
        return 0

    @property
    def decoding(self) -> list[R]:
        """Rows that `step` moves."""
        return [row for row in self.rows if row.input is None]

    def next_input(self, tokens: int) -> list[tuple[R, int]]:
        """Return rows whose prompts should be run next, and how many tokens of each, about `tokens` in all.

        Rows whose prompts are then at their end are first.
        """
        left, found = tokens, list[tuple[R, int]]()
        waiting = [(row, row.input) for row in self.rows if row.input is not None]
        for row, given in sorted(waiting, key=lambda pair: (not pair[0].urgent, pair[0].key)):
            count = given.left
            if count > left:
                # At least one token, and what is left after them is more than the tail.
                count = min(left, given.left - given.tail)
                count = given.left if count < 1 and not found else count
            if count < 1 or left < 1:
                break
            found.append((row, count))
            left -= count
        return sorted(found, key=lambda pair: pair[1] < tokens_left(pair[0]))


def tokens_left(row: Slotted) -> int:
    """Return how many tokens of a row's prompt are not run yet."""
    return row.input.left if row.input is not None else 0
