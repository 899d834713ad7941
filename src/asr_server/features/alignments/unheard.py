"""Words that were not heard: said all the same if they are few and have time, since recognisers leave out words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asr_server.features.alignments.matching import SpanText
from asr_server.text.syllables import syllables

# So many words in a row may be left out by a recogniser. To a longer passage an aligner gives the sound of others.
_FEW = 3
# A second. The fastest of seven languages has 7.8 on average (see `text.syllables`).
_MOST_SYLLABLES = 8

Interval = tuple[int, int]  # start and end in milliseconds


def runs(count: int, texts: Sequence[SpanText]) -> dict[int, list[range]]:
    """Return the short runs of given words that are in no span, for each span that has the word before or after them.

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
    """Return those runs that have the time that it takes to say them: an aligner has no sound for others."""
    found = []
    for run in added:
        first, last = times[run.start][0], times[run.stop - 1][1]
        own_ms = sum(max(0, min(end, last) - max(start, first)) for start, end in speech)
        if _MOST_SYLLABLES * own_ms >= 1000 * sum(syllables(given[number], language) for number in run):
            found.append(run)
    return found
