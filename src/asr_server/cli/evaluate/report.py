"""The results of an evaluation as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asr_server.cli.evaluate.intervals import LEAST_UNITS, Interval
from asr_server.cli.evaluate.results import Group, MeasuredRecording, Results
from asr_server.cli.evaluate.scoring import ErrorCount
from asr_server.cli.failure import shown
from asr_server.cli.progress import clock_text
from asr_server.text.words import measure

# Of a list that may be long; the result file has all.
_MOST_LISTED = 20
HEADS = ("recordings", "words", "WER", "95 %", "wrong", "missing", "extra", "CER", "95 %")  # word, character error rate


def lines(results: Results, worst: int) -> Iterator[str]:
    """Yield the lines of the report, with the `worst` worst recordings."""
    yield from (f"{shown(line)}" for line in notes(results))
    yield ""
    rows = [["", *HEADS], figures(results.total)]
    for title, groups in (("language", results.languages), ("speaker", results.speakers)):
        if groups:
            rows += [[f"by {title}"], *(figures(group, "  ") for group in groups[:_MOST_LISTED])]
        if len(groups) > _MOST_LISTED:
            rows.append([f"  and {len(groups) - _MOST_LISTED} more"])
    yield from table(rows)
    if results.comparison:
        yield ""
        yield from (shown(line) for line in comparison(results))
    wrong = [one for one in results.measured if one.score.words.errors]
    if wrong[:worst]:
        yield ""
        yield "worst recordings"
        yield from table([["", *_worst(one)] for one in wrong[:worst]])


def notes(results: Results) -> Iterator[str]:
    """Yield what a reader has to know about the figures, a sentence each."""
    yield f"{results.system.title}: {clock_text(sum(one.answer.duration_s for one in results.measured))} of audio."
    if not results.normalise:
        yield "Texts are compared as they are, with case and punctuation."
    if results.failures:
        yield f"{len(results.failures)} recordings failed and are not counted."
    if results.wordless:
        yield f"{results.wordless} references have no words; what was written there counts as extra words."
    if results.by_speaker:
        yield "Intervals are for other speakers and recordings like these."
    elif results.total.recordings >= LEAST_UNITS:
        yield (
            f"Intervals are for other recordings of the same speakers; for other speakers, state those of at least "
            f"{LEAST_UNITS}."
        )


def figures(group: Group, indent: str = "") -> list[str]:
    """Return the cells of a group."""
    words = group.words
    return [
        f"{indent}{shown(group.title)}",
        f"{group.recordings:,}",
        f"{words.units:,}",
        rate(words),
        _bounds(group.words_interval),
        *(f"{count:,}" for count in (words.substitutions, words.deletions, words.insertions)),
        rate(group.characters),
        _bounds(group.characters_interval),
    ]


def comparison(results: Results) -> Iterator[str]:
    """Yield the comparison in sentences."""
    found = results.comparison
    if found is None:
        return
    left = results.total.recordings - found.recordings
    more = f"; {left} are not in both, or have another text there" if left else ""
    yield f"Compared with {found.title} on {found.recordings:,} recordings{more}:"
    if found.words:
        here, there = (100 * errors / found.words for errors in (found.errors, found.other_errors))
        yield f"{here:.1f} % word errors here, {there:.1f} % there."
    yield found.verdict


def rate(count: ErrorCount) -> str:
    """Return errors per unit in per cent; a dash where there is nothing to be wrong."""
    return f"{100 * count.rate:.1f} %" if count.units else "-"


def _bounds(interval: Interval | None) -> str:
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}" if interval else "-"


def _worst(one: MeasuredRecording) -> list[str]:
    words = one.score.words
    return [rate(words), f"{words.errors} in {words.units}", f" {shown(one.reference.name)}"]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with their columns below each other, numbers to the right, names to the left."""
    widths = [
        max(measure(row[column]).columns for row in rows if len(row) > max(1, column) or column == 0)
        for column in range(max(map(len, rows)))
    ]
    for row in rows:
        cells = [
            _padded(cell, widths[column], left=column == 0 or cell.startswith(" ")) for column, cell in enumerate(row)
        ]
        yield "  ".join(cells).rstrip()


def _padded(cell: str, width: int, *, left: bool) -> str:
    space = " " * (width - measure(cell).columns)
    return f"{cell}{space}" if left else f"{space}{cell}"
