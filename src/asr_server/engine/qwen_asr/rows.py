"""Rows of answers that share passes of a language model, and how a pass in any library changes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asr_server.engine.memory import Capacity
from asr_server.engine.row import KeptTokens, Row, accepted

# A numpy array or a tensor (n, d).
Embeddings = Any
# Once an answer is longer than expected, it gets room for this many tokens at a time.
_GROWTH = 64


class RowInput:
    """The part of a row's prompt that has not run yet, as embeddings (n, d). Audio is encoded when it is needed. `join`
    concatenates embeddings."""

    def __init__(
        self,
        join: Callable[[Sequence[Embeddings]], Embeddings],
        ready: Embeddings,
        windows: Sequence[Any],
        after: Embeddings,
        tail: int,
    ) -> None:
        self.ready = ready  # the embeddings that exist
        self.windows = list(windows)  # audio after them, each with its number of `tokens`
        self.tail = tail  # tokens at the end that have to be run in one pass
        self._after = after  # embeddings of the ids after the audio
        self._join = join
        self.left = len(ready) + sum(window.tokens for window in windows) + len(after)
        self.add([])

    def missing(self, count: int) -> list[Any]:
        """Return the windows that have to be encoded before the next `count` tokens can run."""
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
        """Forget the next `count` tokens, which have been run."""
        self.ready = self.ready[count:]
        self.left -= count


class Choice(NamedTuple):
    """A token that was chosen."""

    token: int
    logprob: float  # its natural log-probability
    watched: float  # natural log-probability of the watched id


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts about the tokens at some places, before they are chosen."""

    forced: Mapping[int, int] = field(default_factory=dict)  # the token at a place
    # the tokens that may come at a place; any token at other places
    allowed: Mapping[int, Sequence[int]] = field(default_factory=dict)
    sampled: Mapping[int, AnswerRow] = field(default_factory=dict)  # the row whose token at a place is drawn


@dataclass(slots=True, eq=False, kw_only=True)
class AnswerRow(Row):
    """A row of an answer. A decoder sets the fields after `urgent`."""

    generator: Any = None  # of random numbers for sampling: torch's or numpy's, as the decoder
    watched: bool = False  # record the probability of no speech
    expected: int = 0  # new tokens that it will hardly exceed
    urgent: bool = False  # its prompt is run before the prompts of others
    length: int = 0  # tokens whose keys and values are stored
    no_speech_logprob: float | None = None  # set if `watched`
    input: RowInput | None = None  # what is left of its prompt and of `proposed` after it, None once it decodes
    proposed: list[int] = field(default_factory=list)
    reserved: int = 0  # tokens that it has to have room for
    pages: list[int] = field(default_factory=list)  # set by a decoder that keeps keys and values in pages
    places: range = range(0)  # set by a decoder with an arena: the places of its tokens and of later ones

    @property
    def tokens_left(self) -> int:
        return self.input.left if self.input is not None else 0


class Rows(ABC):
    """Rows with their keys and values: rows that decode, and rows whose prompt has not ended.

    `model` has a `dtype`, and calls its `on_layer` inside passes that may take long. `no_speech_id`: the token that
    means "no speech" if it is the second one of an answer.
    """

    device = "cpu"  # where passes run, as in the plan

    def __init__(self, model: Any, end_ids: frozenset[int], capacity: Capacity, no_speech_id: int) -> None:
        self.model = model
        self.rows: list[AnswerRow] = []
        self._end_ids, self._capacity, self._no_speech_id = end_ids, capacity, no_speech_id

    def computing(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def figures(self) -> dict[str, Any]:
        return {}

    def prompt(self, before: Sequence[int], windows: Sequence[Any], after: Sequence[int], tail: int) -> RowInput:
        """Return the prompt of a row, of token ids around audio; see `RowInput`."""
        embeds = self.embed((*before, *after))
        return RowInput(self.join, embeds[: len(before)], windows, embeds[len(before) :], tail)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all keys and values."""

    @abstractmethod
    def generator(self, seed: int) -> Any:
        """Return the random number generator of a sampled row."""

    @abstractmethod
    def embed(self, ids: Sequence[int]) -> Embeddings:
        """Return the embeddings (n, d) of token ids."""

    @abstractmethod
    def join(self, parts: Sequence[Embeddings]) -> Embeddings:
        """Return concatenated embeddings."""

    @abstractmethod
    def fits(self, tokens: int) -> bool:
        """True if one more row, of `tokens`, can be seated now."""

    def seat(self, row: AnswerRow, given: RowInput, cached: KeptTokens | None = None) -> None:
        """Seat a row. `given` is its prompt after the tokens whose keys and values are in `cached`, if any. The prompt
        ends with the tokens that the row proposes. Raises `NoRoom`."""
        row.proposed = row.proposal()
        end = (cached.count if cached is not None else 0) + given.left
        row.reserved = max(end, end - len(row.proposed) + row.expected)
        self.make_room(row)
        if cached is not None:
            self._put(row, cached)
            row.length = cached.count
        row.input = given
        self.rows.append(row)

    @abstractmethod
    def make_room(self, row: AnswerRow) -> None:
        """Give a row the places that it lacks for its `reserved` tokens. Raises `NoRoom`."""

    @abstractmethod
    def _put(self, row: AnswerRow, cached: KeptTokens) -> None:
        """Write keys and values from `copy` to the beginning of a row."""

    @abstractmethod
    def copy(self, row: AnswerRow, tokens: int) -> KeptTokens:
        """Copy the keys and values of a row's first `tokens`."""

    @abstractmethod
    def prefill(self, parts: Sequence[tuple[AnswerRow, int]], *, ahead: bool = False) -> None:
        """Run a number of tokens of each row's prompt in one pass. Their embeddings must be ready.

        Rows whose prompts end decode from then on. `ahead`: as in `step`, for the step after this pass.
        """

    @abstractmethod
    def step(self, *, ahead: bool = False) -> None:
        """Run one pass for all rows that decode: one new token for each row, more if a draft proves right. A pass that
        fails has moved no row.

        `ahead`: the next pass may be queued before the results of this one are read, if the device computes while the
        host reads.
        """

    def _ready(self, parts: Sequence[tuple[AnswerRow, int]]) -> Embeddings:
        """Return the embeddings (n, d) of parts of prompts."""
        return self.join([row.input.ready[:count] for row, count in parts if row.input is not None])

    def _note_prompts(self, parts: Sequence[tuple[AnswerRow, int]], found: Sequence[list[Choice]]) -> None:
        """Note that parts of prompts have run, and the choices after prompts that have ended."""
        ended = [row for row, count in parts if count == row.tokens_left]
        for row, count in parts:
            assert row.input is not None
            row.input.skip(count)
            row.length += count
        for row in ended:
            row.input = None
            row.length -= len(row.proposed)
        note(ended, [row.proposed for row in ended], found, self._end_ids)

    def _next_ids(self, rows: Sequence[AnswerRow]) -> tuple[list[list[int]], list[int]]:
        """Return the proposal of each row, and the ids to run: each row's last id and its proposal. Makes room for
        them. Raises `NoRoom`."""
        proposals = [row.proposal() for row in rows]
        for row, own in zip(rows, proposals, strict=True):
            # Reserve even if there is no room, so that no other row is seated meanwhile.
            if (tokens := row.length + 1 + len(own)) > row.reserved:
                row.reserved = tokens + _GROWTH
        for row in rows:
            self.make_room(row)
        return proposals, [token for row, own in zip(rows, proposals, strict=True) for token in (row.ids[-1], *own)]

    @abstractmethod
    def drop(self, row: AnswerRow) -> None:
        """Take a row out."""

    @property
    def decoding(self) -> list[AnswerRow]:
        return [row for row in self.rows if row.input is None]

    def next_input(self, tokens: int) -> list[tuple[AnswerRow, int]]:
        """Return rows whose prompts should be run next, and how many tokens of each, about `tokens` in all.

        Rows whose prompts then end come first.
        """
        left, found = tokens, list[tuple[AnswerRow, int]]()
        waiting = [(row, row.input) for row in self.rows if row.input is not None]
        for row, given in sorted(waiting, key=lambda pair: (not pair[0].urgent, pair[0].key)):
            count = given.left
            if count > left:
                # Run at least one token, and leave at least the tail.
                count = min(left, given.left - given.tail)
                count = given.left if count < 1 and not found else count
            if count < 1 or left < 1:
                break
            found.append((row, count))
            left -= count
        return sorted(found, key=lambda pair: pair[1] < pair[0].tokens_left)


def note(
    rows: Sequence[AnswerRow],
    proposals: Sequence[list[int]],
    found: Sequence[list[Choice]],
    end_ids: frozenset[int],
) -> None:
    """Note the result of a pass: the proposed tokens that proved right, and one more token."""
    for row, proposal, own in zip(rows, proposals, found, strict=True):
        count = accepted(proposal, [choice.token for choice in own]) + 1 if proposal else 1
        place = 1 - len(row.ids)
        if row.watched and 0 <= place < count:
            row.no_speech_logprob = own[place].watched
        row.length += count - 1
        taken = own[:count]
        row.note([choice.token for choice in taken], [choice.logprob for choice in taken], end_ids)


def known_tokens(rows: Sequence[AnswerRow], begins: Sequence[int], proposals: Sequence[list[int]]) -> Known:
    """Return what is known of the tokens at the places of each row, which begin at its entry in `begins`."""
    forced, allowed, sampled = dict[int, int](), dict[int, tuple[int, ...]](), dict[int, AnswerRow]()
    for row, begin, own in zip(rows, begins, proposals, strict=False):
        if not row.ids:
            # The log-probabilities of forced tokens are needed too, since callers see their words.
            forced |= {begin + n: token for n, token in enumerate(row.forced)}
        if row.beginnings:
            ids = {begin + n: row.allowed(own[:n]) for n in range(1 + len(own))}
            allowed |= {place: tuple(sorted(some)) for place, some in ids.items() if some}
        if row.temperature:
            # A sampled row has no draft: only its last place is open.
            sampled[begin + len(own)] = row
    return Known(forced, allowed, sampled)
