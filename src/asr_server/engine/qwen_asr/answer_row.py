"""Rows of answers, and what passes of any library make of them: tokens that were proposed, forced, allowed, chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asr_server.engine.row import Row, accepted
from asr_server.engine.rows import RowInput

# Sampling is greedy long before this; by less than that, logits cannot be divided.
COLDEST = 1e-4
# Tokens for which an answer gets room at a time, once it is longer than was expected.
_GROWTH = 64


class Choice(NamedTuple):
    """A token that was chosen."""

    token: int
    logprob: float  # its natural log-probability
    watched: float  # natural log-probability of the id that was watched


@dataclass(frozen=True, slots=True)
class Known:
    """Known facts about the tokens at some places, before they are chosen."""

    forced: Mapping[int, int] = field(default_factory=dict)  # the token at a place
    allowed: Mapping[int, Sequence[int]] = field(
        default_factory=dict
    )  # the tokens that may come at a place; any at the others


@dataclass(slots=True, eq=False, kw_only=True)
class AnswerRow(Row):
    """A row of an answer."""

    generator: Any = None  # the source of chance where it is sampled: of torch or of numpy, as the decoder
    watched: bool = False  # the probability that nobody speaks is wanted
    expected: int = 0  # new tokens that it will hardly exceed
    urgent: bool = False  # its prompt is run before those of others
    length: int = 0  # set by the decoder: tokens whose keys and values are there
    no_speech_logprob: float | None = None  # set by the decoder, if it is wanted
    # set by the decoder: what is left of its prompt with the tokens `proposed` after it, None once it decodes
    input: RowInput | None = None
    proposed: list[int] = field(default_factory=list)
    reserved: int = 0  # set by the decoder: tokens that it has to have room for
    pages: list[int] = field(default_factory=list)  # set by a decoder that keeps keys and values in pages
    places: range = range(0)  # set by a decoder that keeps them one behind the other


def growth(row: AnswerRow, tokens: int) -> int:
    """Reserve room for `tokens`, with some more where they are more than was expected; return what is reserved.

    Also where there is no room: no other row may be seated meanwhile.
    """
    if tokens > row.reserved:
        row.reserved = tokens + _GROWTH
    return row.reserved


def note(
    rows: Sequence[AnswerRow],
    proposals: Sequence[list[int]],
    found: Sequence[list[Choice]],
    end_ids: frozenset[int],
) -> None:
    """Note what came of a pass: the proposed tokens that came true and one more."""
    for row, proposal, own in zip(rows, proposals, found, strict=True):
        count = accepted(proposal, [choice.token for choice in own]) + 1 if proposal else 1
        place = 1 - len(row.ids)
        if row.watched and 0 <= place < count:
            row.no_speech_logprob = own[place].watched
        row.length += count - 1
        taken = own[:count]
        row.note([choice.token for choice in taken], [choice.logprob for choice in taken], end_ids)


def known_tokens(rows: Sequence[AnswerRow], begins: Sequence[int], proposals: Sequence[list[int]]) -> Known:
    """Return what is known of the tokens that follow the proposals of rows, whose places begin at `begins`."""
    # The log-probability of forced tokens is asked too: they are words that callers see.
    first = [(row, begin) for row, begin in zip(rows, begins, strict=False) if not row.ids]
    forced = {begin + n: token for row, begin in first for n, token in enumerate(row.forced)}
    return Known(forced, _allowed(rows, begins, proposals))


def _allowed(
    rows: Sequence[AnswerRow], begins: Sequence[int], proposals: Sequence[list[int]]
) -> dict[int, tuple[int, ...]]:
    """Return, for the places where not every id may come, the ids that may."""
    limited = [(row, begin, own) for row, begin, own in zip(rows, begins, proposals, strict=False) if row.beginnings]
    return {
        begin + n: tuple(sorted(ids))
        for row, begin, own in limited
        for n in range(1 + len(own))
        if (ids := row.allowed(own[:n]))
    }
