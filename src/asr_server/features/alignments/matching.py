"""Finds the words of a given text in the transcript of a recording, in bounded time and memory.

The texts are compared letter by letter, without case, accents and punctuation. So it does not matter whether
"every body" was heard for "everybody", or where a script without spaces is divided. Runs of letters that occur once in
each text are anchors. Between two anchors, the letters are aligned with the fewest edits.

A word counts as heard if at least half of it was heard. Given words between two such words take the place of the words
that were heard between them, if both have about as many syllables: a recogniser mishears names and whole passages of
bad sound, and writes numbers in digits. Otherwise the given words have no place. A few such words in a row may have
been said anyway; their times show it once they are aligned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from asr_server.core.transcript import Word
from asr_server.subtitle.alignment import letters, longest_rising
from asr_server.text import scripts, words
from asr_server.text.words import syllables

# About three words. Shorter runs also occur elsewhere in a long text by chance, and the errors of a transcript leave
# fewer long ones.
ANCHOR = 16
# The largest product of the lengths of two texts between anchors. Their comparison takes 50 ms, while no other thread
# runs. In longer texts, such as half an hour of another text, nothing counts as heard.
MOST_PAIRS = 25_000_000
_HEARD = 0.5  # the least score of a word that counts as heard
_ABOUT = 2  # two passages have about as many syllables if neither has more than this many times as many

# A recogniser may leave out this many words in a row. A longer passage would take the sound of other words.
_FEW = 3
# Per second. The fastest of seven languages has 7.8 on average (see `text.words`).
_MOST_SYLLABLES = 8

HeardWord = tuple[str, int]  # a word of the transcript, and the number of the span of speech in which it was heard
# The words of one span in order: given words in the place of heard ones, each with its number, and heard words that no
# given word replaces, with None.
SpanText = tuple[tuple[str, int | None], ...]
Interval = tuple[int, int]  # start and end in milliseconds


@dataclass(frozen=True, slots=True)
class Match:
    """The places of the given words in the transcript."""

    # For each given word 1 - e / max(n, m), at least 0: it has n letters, m letters were heard in its place, and e of
    # them differ, are missing or are too many. 0 if nothing was heard in its place.
    scores: Sequence[float]
    # By the numbers of the spans, in order. Given words that are in no span have no place.
    texts: Mapping[int, SpanText]


def divided(line: str) -> list[str]:
    """Return the words of a line in order, each with a letter or digit; none if the line has neither. A sign by itself
    belongs to the word before it, or at the start to the first word."""
    found: list[str] = []
    for word in words.split(line):
        if found and not (letters(word) and letters(found[-1])):
            found[-1] += scripts.joint(found[-1], word) + word
        else:
            found.append(word)
    return found if found and letters(found[0]) else []


def match(given: Sequence[str], heard: Sequence[HeardWord]) -> Match:
    """Match given words with heard ones. Every word has a letter or digit, and the spans are in order."""
    ours, theirs = _Letters.of(given), _Letters.of([word for word, _ in heard])
    borders = [theirs.starts[at] for at in range(1, len(heard)) if heard[at - 1][1] != heard[at][1]]
    pairs = {i: j for i, j in _pairs(ours.text, theirs.text, borders) if ours.text[i] != " " != theirs.text[j]}
    scores = _scores(ours, theirs, pairs)
    places, others = _places(ours, theirs, pairs, scores)
    items = [(place, given[number], number) for number, place in places.items()]
    texts: dict[int, list[tuple[str, int | None]]] = {}
    # Sorting keeps the order of words that have the same place.
    for place, word, number in sorted([*items, *((n, heard[n][0], None) for n in others)], key=lambda item: item[0]):
        texts.setdefault(heard[place][1], []).append((word, number))
    has_given = (span for span, words in texts.items() if any(number is not None for _, number in words))
    # A word without a place may have letters in common with its neighbours.
    scores = [score if number in places else 0.0 for number, score in enumerate(scores)]
    return Match(scores, {span: tuple(texts[span]) for span in has_given})


def left_out(count: int, texts: Mapping[int, SpanText]) -> dict[int, list[range]]:
    """Return the short runs of given words that are in no span, for each span that has the word before or after the
    run: a recogniser may have left them out. `count`: how many given words there are."""
    spans = {number: span for span, text in texts.items() for _, number in text if number is not None}
    found: dict[int, list[range]] = {}
    for before, after in pairwise([-1, *spans, count]):
        if 1 < after - before <= _FEW + 1:
            for span in {spans[number] for number in (before, after) if number in spans}:
                found.setdefault(span, []).append(range(before + 1, after))
    return found


def joined(text: SpanText, given: Sequence[str], added: Sequence[range]) -> SpanText:
    """Return the text with the runs of `given` inserted next to their neighbours in it."""
    found = list(text)
    for run in reversed(added):
        numbers = [number for _, number in found]
        at = numbers.index(run.start - 1) + 1 if run.start - 1 in numbers else numbers.index(run.stop)
        found[at:at] = [(given[number], number) for number in run]
    return tuple(found)


def said(
    added: Sequence[range], times: Mapping[int, Word], given: Sequence[str], speech: Sequence[Interval], language: str
) -> list[range]:
    """Return the runs that were given enough time to say them: for words that nobody said, an aligner finds no sound.
    `times`: the aligned words by number; `speech`: where the span has sound."""
    found = []
    for run in (run for run in added if run.start in times and run.stop - 1 in times):
        first, last = times[run.start].start_ms, times[run.stop - 1].end_ms
        own_ms = sum(max(0, min(end, last) - max(start, first)) for start, end in speech)
        if _MOST_SYLLABLES * own_ms >= 1000 * sum(syllables(given[number], language) for number in run):
            found.append(run)
    return found


@dataclass(frozen=True, slots=True)
class _Letters:
    """The letters of words, with a space after each word."""

    text: str
    words: Sequence[int]  # for each character of `text` the number of its word
    starts: Sequence[int]  # where each word begins in `text`, and the length of `text`
    syllables: Sequence[float]  # of each word, about

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Letters:
        own = ["".join((*letters(text), " ")) for text in texts]
        numbers = [number for number, word in enumerate(own) for _ in word]
        return cls("".join(own), numbers, [0, *accumulate(map(len, own))], [syllables(text, "") for text in texts])


def _scores(ours: _Letters, theirs: _Letters, pairs: Mapping[int, int]) -> list[float]:
    """Return the score of each given word, as `Match` defines it."""
    from rapidfuzz.distance import Levenshtein  # takes 3 MB, and a server may never need it

    owners = {j: ours.words[i] for i, j in pairs.items()}
    heard = defaultdict[int, str](str)  # in the place of each given word
    for start, end in pairwise(theirs.starts):
        own = [owners.get(j) for j in range(start, end - 1)]
        last = next((owner for owner in own if owner is not None), -1)
        for owner, letter in zip(own, theirs.text[start:end], strict=False) if last >= 0 else ():
            # An extra letter belongs to the given word before it, within the heard word.
            last = last if owner is None else owner
            heard[last] += letter
    written = (ours.text[start : end - 1] for start, end in pairwise(ours.starts))
    return [Levenshtein.normalized_similarity(word, heard[number]) for number, word in enumerate(written)]


def _places(
    ours: _Letters, theirs: _Letters, pairs: Mapping[int, int], scores: Sequence[float]
) -> tuple[dict[int, int], list[int]]:
    """Return the given words that take the place of heard words, by number with the number of the heard word; and the
    heard words whose place no given word takes."""
    found: dict[int, int] = {}
    others: list[int] = []
    before, last = -1, -1  # the last given word that was heard so far, and the last heard word that has letters of it
    for number in [*(number for number, score in enumerate(scores) if score >= _HEARD), len(scores)]:
        letters_of = range(*ours.starts[number : number + 2]) if number < len(scores) else ()
        own = [theirs.words[pairs[i]] for i in letters_of if i in pairs] or [len(theirs.starts) - 1]
        run, between = range(before + 1, number), range(last + 1, own[0])
        replaced = _replaced(ours, theirs, run, between)
        found |= replaced
        others += () if replaced else between
        if number < len(scores):
            found[number] = own[len(own) // 2]
        before, last = number, max(last, own[-1])
    return found, others


def _replaced(ours: _Letters, theirs: _Letters, run: range, between: range) -> dict[int, int]:
    """Spread a run of given words over the heard words `between`, in proportion to their letters. Return no places
    unless both have about as many syllables. (Letters do not show it: numbers in digits have few.)"""
    spoken, known = (sum(text.syllables[at.start : at.stop]) for text, at in ((ours, run), (theirs, between)))
    if not (run and between and spoken <= _ABOUT * known and known <= _ABOUT * spoken):
        return {}
    first, start = ours.starts[run.start], theirs.starts[between.start]
    scale = (theirs.starts[between.stop] - start) / (ours.starts[run.stop] - first) / 2
    middles = {number: ours.starts[number] + ours.starts[number + 1] - 2 * first for number in run}
    return {number: theirs.words[start + int(middle * scale)] for number, middle in middles.items()}


def _pairs(ours: str, theirs: str, borders: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions, one in each text, that correspond to each other; both ascend. `borders`: where spans
    begin in `theirs`."""
    from rapidfuzz.distance import Levenshtein  # takes 3 MB, and a server may never need it

    i = j = 0
    for first, other, length in [*_anchors(ours, theirs), (len(ours), len(theirs), 0)]:
        if i == first:  # our text has nothing between the two anchors
            again = _repeated(ours[first : first + length], theirs[j:other], [at - j for at in borders])
            yield from ((first + at, j + at) for at in range(again))
            first, other, length, i, j = first + again, other + again, length - again, first + again, j + again
        if 0 < (first - i) * (other - j) <= MOST_PAIRS:
            one, two = ours[i:first], theirs[j:other]
            pairs: dict[int, int] = {}
            for edit in Levenshtein.opcodes(one, two):
                pairs |= zip(range(edit.src_start, edit.src_end), range(edit.dest_start, edit.dest_end), strict=False)
            for _ in range(2):  # a passage may be in only one of the texts, in either of them
                one, two, pairs = two, one, _together(one, two, pairs, before_anchor=length > 0)
            yield from ((i + here, j + there) for here, there in sorted(pairs.items()))
        yield from ((first + at, other + at) for at in range(length))
        i, j = first + length, other + length


def _repeated(ours: str, more: str, borders: Sequence[int]) -> int:
    """Return how many letters of our text `more` begins with, in whole words, and up to the last border of a span if it
    reaches one: a recogniser may write a passage twice, and its words belong together where they were heard first."""
    equal = (at for at, (one, two) in enumerate(zip(ours, more, strict=False)) if one != two)
    size = ours.rfind(" ", 0, next(equal, min(len(ours), len(more)))) + 1
    return max((at for at in borders if 0 < at <= size), default=size)


def _together(one: str, two: str, pairs: Mapping[int, int], *, before_anchor: bool) -> dict[int, int]:
    """Return the pairs from `two` to `one` of an alignment with as few edits that keeps letters together if it can.

    rapidfuzz pairs letters as early as it can. If a passage is only in `one`, the letters after it may also occur in
    the passage and be paired there: this function moves them next to the pair that follows them.
    """
    found = {j: i for i, j in pairs.items()}
    after = len(one) if before_anchor else -1  # the place of the next letter of `two`
    for j in range(len(two) - 1, -1, -1):
        if -1 < found.get(j, after) < after - 1:
            size = 0
            while j - size in found and one[after - 1 - size] == two[j - size]:
                size += 1
            # Letters that are together in a word stay together.
            while (
                size and " " not in two[j - size : j - size + 2] and found.get(j - size, -9) + 1 == found[j - size + 1]
            ):
                size -= 1
            found |= {j - n: after - 1 - n for n in range(size)}
        after = found.get(j, -1)
    return found


def _anchors(ours: str, theirs: str) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal letters in order: where they begin in each text, and how long they are."""
    places = _unique_runs(theirs)
    common = [(at, places[run]) for run, at in _unique_runs(ours).items() if run in places]
    chain = set(longest_rising(common))
    i = j = 0
    for at, other in common:
        skipped = max(i - at, j - other, 0)  # its overlap with the run before
        if at in chain and skipped < ANCHOR:
            yield at + skipped, other + skipped, ANCHOR - skipped
            i, j = at + ANCHOR, other + ANCHOR


def _unique_runs(text: str) -> dict[str, int]:
    """Return the runs of `ANCHOR` letters that occur once, with their places, in order."""
    runs = [text[at : at + ANCHOR] for at in range(len(text) - ANCHOR + 1)]
    counts = Counter(runs)
    return {run: at for at, run in enumerate(runs) if counts[run] == 1}
