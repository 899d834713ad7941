"""The results of an evaluation: recordings, groups of them, a comparison of two systems, and the report as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from asr_server import __version__
from asr_server.cli.evaluate.references import Reference, language_name
from asr_server.cli.evaluate.scoring import (
    LEAST_UNITS,
    LEVEL,
    Bounds,
    ComparedPassage,
    Draws,
    ErrorCount,
    Score,
    TimedWord,
    draws_speakers,
    score,
)
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.progress import clock_text
from asr_server.text.words import measure

_VERSION = 1
_MOST_LISTED = 20  # groups in the report; the result file has all
HEADS = ("recordings", "words", "WER", "95 %", "wrong", "missing", "extra", "CER", "95 %")  # word, character error rate


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """The text of one recording as a system wrote it."""

    text: str
    language: str = ""  # as the system found it; empty if it does not say
    duration_s: float = 0.0
    words: tuple[TimedWord, ...] = ()


@dataclass(frozen=True, slots=True)
class Other:
    """The texts of a system to compare with."""

    title: str
    texts: Mapping[str, str]  # by the name of the recording
    references: Mapping[str, str] = field(default_factory=dict)  # by which an earlier run measured them


@dataclass(frozen=True, slots=True)
class MeasuredRecording:
    """One recording."""

    reference: Reference
    answer: SystemAnswer
    score: Score
    other: ErrorCount | None  # word errors of the other system
    other_text: str = ""

    @property
    def language(self) -> str:
        """Return the English name of the language as stated, or else as the server found it."""
        return language_name(self.reference.language or self.answer.language)

    @property
    def errors(self) -> list[ComparedPassage]:
        """Return the errors in their order."""
        return [passage for passage in self.score.passages if passage.is_error]

    def as_json(self) -> dict[str, Any]:
        """Return the recording for the result file."""
        fields = {
            "name": self.reference.name,
            "language": self.language,
            "speaker": self.reference.speaker,
            "duration_s": self.answer.duration_s,
            "reference": self.reference.text,
            "text": self.answer.text,
            "words": _count_json(self.score.words),
            "characters": _count_json(self.score.characters),
            "errors": [asdict(passage) for passage in self.errors],
        }
        return fields | ({"compared_text": self.other_text} if self.other else {})


class Group:
    """The figures of some recordings together."""

    def __init__(self, title: str, members: Sequence[MeasuredRecording]) -> None:
        self.title, self.members = title, members
        self.words = sum((one.score.words for one in members), ErrorCount())
        self.characters = sum((one.score.characters for one in members), ErrorCount())
        counts = [
            [words.errors, words.units, characters.errors, characters.units, one.other.errors if one.other else 0]
            for one in members
            for words, characters in [(one.score.words, one.score.characters)]
        ]
        self.draws = Draws.of(counts, [one.reference.speaker for one in members])
        self.words_interval = self.draws.interval(0, 1) if self.draws else None
        self.characters_interval = self.draws.interval(2, 3) if self.draws else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures for the result file."""
        return {
            "recordings": len(self.members),
            "words": _count_json(self.words, self.words_interval),
            "characters": _count_json(self.characters, self.characters_interval),
        }

    def cells(self) -> list[str]:
        """Return the row of a table."""
        words = self.words
        return [
            shown(self.title),
            f"{len(self.members):,}",
            f"{words.units:,}",
            rate(words),
            _bounds(self.words_interval),
            *(f"{count:,}" for count in (words.substitutions, words.deletions, words.insertions)),
            rate(self.characters),
            _bounds(self.characters_interval),
        ]


class Comparison:
    """Word errors of this system and of another on the same recordings."""

    def __init__(self, measured: Sequence[MeasuredRecording], other: Other) -> None:
        both = Group("both", [one for one in measured if one.other])
        self.title, self.recordings, self.words = other.title, len(both.members), both.words.units
        self.errors = both.words.errors
        self.other_errors = sum(one.other.errors for one in both.members if one.other)
        self.interval = both.draws.interval(0, 1, 4) if both.draws else None
        # Below 0 if this system is better.
        self.difference = (self.errors - self.other_errors) / self.words if self.words else 0.0

    @property
    def verdict(self) -> str:
        """Say in a sentence whether one is better."""
        points = f"{abs(100 * self.difference):.2f} points"
        if self.interval is None:
            reason = f"fewer than {LEAST_UNITS} recordings, or the same difference in each"
            return f"Whether one is better cannot be told: {reason}."
        low, high = self.interval
        bounds = f"95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
        if low <= 0 <= high:
            return f"The difference of {points} cannot be told from chance ({bounds})."
        which = "This one is better" if high < 0 else "The other is better"
        return f"{which} by {points}, which is more than chance ({bounds})."


class Results:
    """All results of a run. `system` has the fields of the measured system, `failed` error codes by recording."""

    def __init__(
        self,
        system: Mapping[str, Any],
        references: Sequence[Reference],
        answers: Mapping[str, SystemAnswer],
        failed: Mapping[str, str],
        *,
        normalise: bool,
        other: Other | None,
    ) -> None:
        self.system, self.failed, self.normalise = system, failed, normalise
        measured = [_measured(one, answers[one.name], normalise, other) for one in references if one.name in answers]
        self.measured = sorted(  # the worst first
            measured, key=lambda one: (-one.score.words.rate, -one.score.words.errors, one.reference.name)
        )
        self.by_speaker = draws_speakers([one.reference.speaker for one in measured])
        self.total = Group("all", measured)
        self.groups = {
            "language": self._groups(lambda one: one.language or "not known"),
            "speaker": [group for group in self._groups(lambda one: one.reference.speaker) if group.title],
        }
        self.comparison = Comparison(measured, other) if other else None

    def _groups(self, title: Callable[[MeasuredRecording], str]) -> list[Group]:
        """Return the groups with the worst first; none if there is only one."""
        titles = {title(one) for one in self.measured}
        groups = [Group(name, [one for one in self.measured if title(one) == name]) for name in titles]
        return sorted(groups, key=lambda group: (-group.words.rate, group.title)) if len(groups) > 1 else []

    def as_json(self) -> bytes:
        """Return the result file."""
        found = self.comparison
        content = {
            "version": _VERSION,
            "asr_server": __version__,
            "system": self.system,
            "normalised": self.normalise,
            "intervals": {"level": LEVEL, "drawn": "speakers" if self.by_speaker else "recordings"},
            "total": self.total.as_json(),
            "languages": {group.title: group.as_json() for group in self.groups["language"]},
            "speakers": {group.title: group.as_json() for group in self.groups["speaker"]},
            "comparison": {**vars(found), "verdict": found.verdict} if found else None,
            "failed": dict(self.failed),
            "recordings": [one.as_json() for one in self.measured],
        }
        # Bytes in file names that are not UTF-8 become escapes of JSON.
        return json.dumps(content, ensure_ascii=False, indent=1).encode(errors="backslashreplace")

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each fact that a reader must know about the figures."""
        yield f"{title(self.system)}: {clock_text(sum(one.answer.duration_s for one in self.measured))} of audio."
        if not self.normalise:
            yield "Texts are compared as they are, with case and punctuation."
        if self.failed:
            yield f"{len(self.failed)} recordings failed and are not counted."
        if wordless := sum(not one.score.words.units for one in self.measured):
            yield f"{wordless} references have no words; what was written there counts as extra words."
        if self.by_speaker:
            yield "Intervals are for other speakers and recordings like these."
        elif self.total.draws:
            people = f"for other speakers, state those of at least {LEAST_UNITS}"
            yield f"Intervals are for other recordings of the same speakers; {people}."

    def compared(self) -> Iterator[str]:
        """Yield the comparison in sentences."""
        if found := self.comparison:
            left = len(self.measured) - found.recordings
            more = f"; {left} are not in both, or have another text there" if left else ""
            yield f"Compared with {found.title} on {found.recordings:,} recordings{more}:"
            if found.words:
                here, there = (100 * errors / found.words for errors in (found.errors, found.other_errors))
                yield f"{here:.1f} % word errors here, {there:.1f} % there."
            yield found.verdict

    def table(self, most: int) -> Iterator[list[str]]:
        """Yield the rows of figures, with at most `most` groups of each kind."""
        yield ["", *HEADS]
        yield self.total.cells()
        for kind, groups in self.groups.items():
            if groups:
                yield [f"by {kind}"]
            yield from (group.cells() for group in groups[:most])
            if len(groups) > most:
                yield [f"and {len(groups) - most} more"]

    def report(self, worst: int) -> Iterator[str]:
        """Yield the lines of the report, with the `worst` worst recordings."""
        yield from map(shown, self.notes())
        yield ""
        yield from _aligned(list(self.table(_MOST_LISTED)))
        if self.comparison:
            yield ""
            yield from map(shown, self.compared())
        wrong = [one for one in self.measured if one.score.words.errors][:worst]
        if wrong:
            yield ""
            yield "worst recordings"
            counts = [(one, one.score.words) for one in wrong]
            yield from _aligned(
                [["", rate(c), f"{c.errors} in {c.units}", f" {shown(one.reference.name)}"] for one, c in counts]
            )


def _measured(reference: Reference, answer: SystemAnswer, normalise: bool, other: Other | None) -> MeasuredRecording:
    language = reference.language or answer.language
    found = score(reference.text, answer.text, language, normalise=normalise, timed=answer.words)
    text = other.texts.get(reference.name) if other else None
    if other is None or text is None or other.references.get(reference.name, reference.text) != reference.text:
        return MeasuredRecording(reference, answer, found, None)
    return MeasuredRecording(
        reference, answer, found, score(reference.text, text, language, normalise=normalise).words, text
    )


def rate(count: ErrorCount) -> str:
    """Return errors per unit in per cent, or a dash if the reference has no units."""
    return f"{100 * count.rate:.1f} %" if count.units else "-"


def _bounds(interval: Bounds | None) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else "-"


def _count_json(count: ErrorCount, interval: Bounds | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(count) | {"errors": count.errors, "rate": count.rate if count.units else None}
    return fields | ({"interval": interval} if interval else {})


def title(system: Mapping[str, Any]) -> str:
    """Return the server and the model that was asked for."""
    return f"{system['server']}, model {system['model']}" if system["model"] else system["server"]


def previous(file: Path) -> Other:
    """Return the texts of a result file. Raises `UsageError`."""
    try:
        content = json.loads(file.read_bytes())
        if content["version"] != _VERSION:
            raise UsageError(f"{shown(str(file))} is of another version of asr-server.")
        recordings = {str(one["name"]): one for one in content["recordings"]}
        texts, references = ({name: str(one[key]) for name, one in recordings.items()} for key in ("text", "reference"))
        return Other(f"{title(content['system'])} ({file.name})", texts, references)
    except OSError as error:
        raise UsageError(f"{shown(str(file))} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{shown(str(file))} is no result of asr-server evaluate --json.") from None


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with aligned columns: numbers to the right, names to the left. Rows of one cell are headings."""
    columns = [row for row in rows if len(row) > 1]
    widths = [max(measure(row[n]).columns for row in columns) for n in range(len(columns[0]))]
    for row in rows:
        cells = []
        for n, cell in enumerate(row):
            space = " " * (widths[n] - measure(cell).columns)
            cells.append(f"{cell}{space}" if n == 0 or cell.startswith(" ") else f"{space}{cell}")
        yield "  ".join(cells).rstrip()
