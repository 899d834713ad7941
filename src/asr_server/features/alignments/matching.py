"""Finds the words of a given text in what was heard of a recording, in bounded time and memory.

Both are compared letter by letter, without case, accents, spaces and punctuation, so that it does not matter whether
"every body" was heard for "everybody", or where a script without spaces is divided. Runs of letters that occur once in
each of them are anchors. Between two anchors the letters are aligned at least cost (Gotoh, "An improved algorithm for
matching biological sequences", J. Mol. Biol. 162, 1982): another letter costs 3, a missing or extra letter 1, and a
gap of those 2 more at an end that is between words, and 3 more at one inside a word, so that a passage that was not
read is one gap, and not scattered over others that it resembles here and there.

Words of which at least half was heard are where it was heard. Words between two of those take the place of what was
heard between them, if that has about as many syllables: a recogniser mishears names, and whole passages of bad sound,
and writes numbers in digits. Where it has much less or more, they have no place. A few of those may have been said all
the same, which their times tell once they are aligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asr_server.subtitle.alignment import letters, longest_rising
from asr_server.text import scripts, words
from asr_server.text.syllables import syllables

# About three words. Shorter runs occur by chance at other places of a long text, and longer ones less often in what was
# heard with errors.
_ANCHOR = 16
# Of letters between two anchors; the table has a byte for each. Where there are more, as in half an hour of another
# text, nothing counts as heard.
_MOST_PAIRS = 25_000_000
_HEARD = 0.5  # the least score of a word that counts as heard
_ABOUT = 2  # one passage has about as many syllables as another if it has at most so many times as many

# So many words in a row a recogniser may leave out. To a longer passage an aligner gives the sound of others.
_FEW = 3
# A second. The fastest of seven languages has 7.8 on average (see `text.syllables`).
_MOST_SYLLABLES = 8

_OTHER, _MORE, _BETWEEN, _INSIDE = 3, 1, 2, 3  # the costs
_FREE, _DELETED, _INSERTED = 0, 1, 2  # states of the way through the table
_DELETES_ON, _INSERTS_ON = 4, 8  # the gap had begun before
_NEVER = 1 << 29

Ints = NDArray[np.int32]
Interval = tuple[int, int]  # start and end in milliseconds


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word of the transcript."""

    text: str
    span: int  # number of the span of speech in which it was heard


@dataclass(frozen=True, slots=True)
class SpanText:
    """The text of one span: given words in the place of those that were heard, and heard words that were not given."""

    span: int
    words: tuple[tuple[str, int | None], ...]  # in order, each with the number of the given word, None for others


@dataclass(frozen=True, slots=True)
class Match:
    """The given words in what was heard."""

    # For each given word 1 - e / max(n, m), at least 0: of its n letters and the m letters that were heard in its
    # place, e differ, are missing or are too many. 0 where none was heard.
    scores: tuple[float, ...]
    # Ordered by span. Words that are in none of them have no place.
    texts: tuple[SpanText, ...]


def divided(line: str) -> list[str]:
    """Return the words of a line in order, each with a letter or digit; none for a line without. Signs that stand alone
    belong to the word before them, or to the first."""
    found: list[str] = []
    for word in words.split(line):
        if found and not (letters(word) and letters(found[-1])):
            found[-1] += scripts.joint(found[-1], word) + word
        else:
            found.append(word)
    return found if found and letters(found[0]) else []


def match(given: Sequence[str], heard: Sequence[HeardWord]) -> Match:
    """Match given words with heard ones. Every word has a letter or digit, and `span` does not fall."""
    ours, theirs = _Letters.of(given), _Letters.of([word.text for word in heard])
    pairs = _pairs(ours, theirs)
    scores = _scores(ours, theirs, pairs)
    at, others = _places(ours, theirs, pairs, scores)
    items = [(place, given[number], number) for number, place in enumerate(at) if place is not None]
    texts: dict[int, list[tuple[str, int | None]]] = {}
    # Sorting keeps the order of words that have the same place.
    for place, word, number in sorted([*items, *((n, heard[n].text, None) for n in others)], key=lambda item: item[0]):
        texts.setdefault(heard[place].span, []).append((word, number))
    own = {span: tuple(words) for span, words in texts.items() if any(number is not None for _, number in words)}
    return Match(tuple(scores.tolist()), tuple(SpanText(span, words) for span, words in own.items()))


def left_out(count: int, texts: Sequence[SpanText]) -> dict[int, list[range]]:
    """Return the runs of a few given words that are in no span, for each span that has the word before or after them: a
    recogniser may have left them out.

    `count`: how many words are given.
    """
    spans = {number: text.span for text in texts for _, number in text.words if number is not None}
    found: dict[int, list[range]] = {}
    known = sorted(spans)
    for before, after in zip([-1, *known], [*known, count], strict=True):
        if 1 < after - before <= _FEW + 1:
            for span in {spans[number] for number in (before, after) if number in spans}:
                found.setdefault(span, []).append(range(before + 1, after))
    return found


def joined(text: SpanText, given: Sequence[str], added: Sequence[range]) -> SpanText:
    """Return the text with runs of `given` that are next to words of it."""
    places = {number: place for place, (_, number) in enumerate(text.words) if number is not None}
    at = {places[run.start - 1] + 1 if run.start - 1 in places else places[run.stop]: run for run in added}
    return SpanText(text.span, tuple(_joined(text.words, given, at)))


def _joined(
    words: Sequence[tuple[str, int | None]], given: Sequence[str], at: dict[int, range]
) -> Iterator[tuple[str, int | None]]:
    for place in range(len(words) + 1):
        yield from ((given[number], number) for number in at.get(place, ()))
        yield from words[place : place + 1]


def said(
    added: Sequence[range], times: dict[int, Interval], given: Sequence[str], speech: Sequence[Interval], language: str
) -> list[range]:
    """Return those runs of given words that have the time that it takes to say them: an aligner has no sound for
    others.

    `times`: those of given words by their numbers; `speech`: where the span has sound.
    """
    found = []
    for run in (run for run in added if run.start in times and run.stop - 1 in times):
        first, last = times[run.start][0], times[run.stop - 1][1]
        own_ms = sum(max(0, min(end, last) - max(start, first)) for start, end in speech)
        if _MOST_SYLLABLES * own_ms >= 1000 * sum(syllables(given[number], language) for number in run):
            found.append(run)
    return found


def _scores(ours: _Letters, theirs: _Letters, pairs: Ints) -> NDArray[np.float64]:
    """Return the score of each given word, as `Match` has it."""
    sizes = np.diff(ours.starts)
    found = theirs.codes[np.maximum(pairs, 0)] if len(theirs.codes) else pairs
    edits = np.bincount(ours.words, (pairs < 0) | (ours.codes != found), len(sizes))
    places = np.bincount(ours.words, pairs >= 0, len(sizes))
    owners = np.full(len(theirs.text), -1, np.int32)
    owners[pairs[pairs >= 0]] = ours.words[pairs >= 0]
    for start, end in pairwise(theirs.starts.tolist()):
        own = owners[start:end].tolist()
        last = next((owner for owner in own if owner >= 0), -1)
        for owner in own if last >= 0 else ():
            last = owner if owner >= 0 else last
            # A letter too many belongs to the given word before it, within the heard word.
            edits[last] += owner < 0
            places[last] += owner < 0
    agreed: NDArray[np.float64] = 1 - edits / np.maximum(sizes, places)
    return np.where(places > 0, np.maximum(0, agreed), 0)


def _places(
    ours: _Letters, theirs: _Letters, pairs: Ints, scores: NDArray[np.float64]
) -> tuple[list[int | None], list[int]]:
    """Return for each given word the number of the heard word in whose place it is, rising, None for none; and the
    heard words in whose place none is."""
    count = len(ours.starts) - 1
    at: list[int | None] = [None] * count
    others: list[int] = []
    before, last = -1, -1  # the last word that was heard so far, and the last heard word that has letters of it
    for number in [*np.flatnonzero(scores >= _HEARD).tolist(), count]:
        first = end = len(theirs.starts) - 1
        if number < count:
            own = pairs[ours.starts[number] : ours.starts[number + 1]]
            own = theirs.words[own[own >= 0]]
            at[number], first, end = int(own[len(own) // 2]), int(own[0]), int(own[-1])
        run, between = range(before + 1, number), range(last + 1, first)
        places = _replaced(ours, theirs, run, between)
        if places:
            at[before + 1 : number] = places
        else:
            others += between
        before, last = number, max(last, end)
    return at, others


def _replaced(ours: _Letters, theirs: _Letters, run: range, between: range) -> list[int | None]:
    """Return the places of given words in heard ones, in proportion to their letters; none unless both have about as
    many syllables. (Numbers in digits have few letters.)"""
    spoken, known = (float(text.syllables[at.start : at.stop].sum()) for text, at in ((ours, run), (theirs, between)))
    if not (run and between and spoken <= _ABOUT * known and known <= _ABOUT * spoken):
        return []
    first, start = int(ours.starts[run.start]), int(theirs.starts[between.start])
    size, room = int(ours.starts[run.stop]) - first, int(theirs.starts[between.stop]) - start
    middles = (ours.starts[run.start : run.stop] + ours.starts[run.start + 1 : run.stop + 1]) / 2 - first
    found: list[int | None] = theirs.words[start + (middles * room / size).astype(np.int32)].tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Letters:
    """The letters of words."""

    text: str
    codes: Ints  # code points of `text`
    words: Ints  # for each letter the number of its word
    starts: Ints  # for each word the number of its first letter, and at the end the number of all letters
    syllables: NDArray[np.float64]  # of each word, about

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Letters:
        own = ["".join(letters(text)) for text in texts]
        lengths = np.array([len(one) for one in own], np.int32)
        text = "".join(own)
        return cls(
            text,
            np.frombuffer(text.encode("utf-32-le"), np.int32),
            np.repeat(np.arange(len(own), dtype=np.int32), lengths),
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
            np.array([syllables(text, "") for text in texts]),
        )

    def edges(self, first: int, last: int) -> Ints:
        """Return what a gap costs more that begins or ends before each of the letters [first, last], the last end
        included."""
        found = np.full(last - first + 1, _INSIDE, np.int32)
        low, high = np.searchsorted(self.starts, (first, last + 1))
        found[self.starts[low:high] - first] = _BETWEEN
        return found


def _pairs(ours: _Letters, theirs: _Letters) -> Ints:
    """Return for each of our letters the number of the letter that was heard in its place, rising; -1 for none."""
    pairs = np.full(len(ours.text), -1, np.int32)
    i = j = 0
    for first, other, length in [*_anchors(ours.text, theirs.text), (len(ours.text), len(theirs.text), 0)]:
        if 0 < (first - i) * (other - j) <= _MOST_PAIRS:
            one, two = ours.codes[i:first], theirs.codes[j:other]
            found = _least_cost(one, two, ours.edges(i, first), theirs.edges(j, other))
            pairs[i + found[:, 0]] = j + found[:, 1]
        pairs[first : first + length] = np.arange(other, other + length)
        i, j = first + length, other + length
    return pairs


def _anchors(ours: str, theirs: str) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal letters in order: where they begin in each text, and how long they are."""
    places = _unique_runs(theirs)
    common = [(at, places[run]) for run, at in _unique_runs(ours).items() if run in places]
    chain = set(longest_rising(common))
    i = j = 0
    for at, other in common:
        skipped = max(i - at, j - other, 0)  # it overlaps with the one before
        if at in chain and skipped < _ANCHOR:
            yield at + skipped, other + skipped, _ANCHOR - skipped
            i, j = at + _ANCHOR, other + _ANCHOR


def _unique_runs(text: str) -> dict[str, int]:
    """Return the runs of `_ANCHOR` letters that occur once, with their places, in order."""
    places: dict[str, int] = {}
    for at in range(len(text) - _ANCHOR + 1):
        run = text[at : at + _ANCHOR]
        places[run] = at if run not in places else -1
    return {run: at for run, at in places.items() if at >= 0}


def _least_cost(one: Ints, two: Ints, one_edges: Ints, two_edges: Ints) -> Ints:
    """Return the pairs of letters at the same place in the alignment of least cost, (n, 2), both rising.

    `one_edges`, `two_edges`: the cost of an end of a gap before each letter, and after the last.
    """
    if len(one) > len(two):  # a row of the table is computed at once, so that long rows take least time
        return _least_cost(two, one, two_edges, one_edges)[:, ::-1]
    table = _table(one, two, one_edges, two_edges)
    found: list[tuple[int, int]] = []
    i, j, state = len(one), len(two), _FREE
    while i or j:
        step = int(table[i, j])
        if state == _FREE:
            state = step & 3
            if state == _FREE:
                i, j = i - 1, j - 1
                found.append((i, j))
        elif state == _DELETED:
            i, state = i - 1, _DELETED if step & _DELETES_ON else _FREE
        else:
            j, state = j - 1, _INSERTED if step & _INSERTS_ON else _FREE
    return np.array(found[::-1], np.int32).reshape(-1, 2)


def _table(one: Ints, two: Ints, one_edges: Ints, two_edges: Ints) -> NDArray[np.uint8]:
    """Return how the cheapest way came to each place, (len(one) + 1, len(two) + 1): a state, and bits for gaps."""
    table = np.empty((len(one) + 1, len(two) + 1), np.uint8)
    table[0] = _INSERTED | _INSERTS_ON
    table[0, 1] = _INSERTED
    along = np.arange(len(two) + 1, dtype=np.int32) * _MORE
    never = np.full(1, _NEVER, np.int32)
    deletes = np.full(len(two) + 1, _NEVER, np.int32)  # the cost of ways that end inside a gap of `two`
    best = along + two_edges[0] + two_edges
    best[0] = 0
    for row, letter in enumerate(one.tolist(), start=1):
        begun = best + one_edges[row - 1]
        deletes_on = deletes < begun
        deletes = np.minimum(begun, deletes) + _MORE
        paired = np.concatenate((never, best[:-1] + _OTHER * (two != letter).astype(np.int32)))
        deleted = deletes + one_edges[row]
        way = np.minimum(paired, deleted)
        begun = (way + two_edges - along)[:-1]
        cheapest = np.minimum.accumulate(begun)
        inserted = np.concatenate((never, cheapest + (along + two_edges)[1:]))
        best = np.minimum(way, inserted)
        states = np.where(inserted < way, _INSERTED, np.where(deleted < paired, _DELETED, _FREE))
        states += _DELETES_ON * deletes_on
        states[1:] += _INSERTS_ON * (cheapest < begun)
        table[row] = states
    return table
