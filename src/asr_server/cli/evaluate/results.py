"""The results of an evaluation: each recording, the figures of all, of each language and speaker, and a comparison."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr_server import __version__
from asr_server.cli.evaluate import intervals
from asr_server.cli.evaluate.answers import System, SystemAnswer
from asr_server.cli.evaluate.intervals import Interval
from asr_server.cli.evaluate.references import Reference, language_name
from asr_server.cli.evaluate.scoring import ComparedPassage, ErrorCount, Score, score
from asr_server.cli.failure import Failure, UsageError, shown

_VERSION = 1
# The places of a recording's counts, as they are drawn for intervals.
_WORD_ERRORS, _WORDS, _CHARACTER_ERRORS, _CHARACTERS, _OTHER_ERRORS = range(5)


@dataclass(frozen=True, slots=True)
class MeasuredRecording:
    """One recording."""

    reference: Reference
    answer: SystemAnswer
    score: Score
    other: Score | None  # of the system that is compared
    other_text: str = ""

    @property
    def language(self) -> str:
        """Return the language as stated, or else as the server found it, by its English name."""
        return language_name(self.reference.language or self.answer.language)

    @property
    def counts(self) -> list[int]:
        """Return what intervals are drawn from."""
        words, characters = self.score.words, self.score.characters
        other = self.other.words.errors if self.other else 0
        return [words.errors, words.units, characters.errors, characters.units, other]

    def as_json(self) -> dict[str, Any]:
        """Return the recording as the result file has it."""
        fields = {
            "name": self.reference.name,
            "language": self.language,
            "speaker": self.reference.speaker,
            "duration_s": self.answer.duration_s,
            "reference": self.reference.text,
            "text": self.answer.text,
            "words": _count_json(self.score.words, None),
            "characters": _count_json(self.score.characters, None),
            "errors": [asdict(passage) for passage in self.errors],
        }
        return fields | ({"compared_text": self.other_text} if self.other else {})

    @property
    def errors(self) -> list[ComparedPassage]:
        """Return the places of the errors, in order."""
        return [passage for passage in self.score.passages if passage.is_error]


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of some recordings together."""

    title: str
    recordings: int
    words: ErrorCount
    words_interval: Interval | None  # None where there is too little to tell
    characters: ErrorCount
    characters_interval: Interval | None

    def as_json(self) -> dict[str, Any]:
        """Return the figures as the result file has them."""
        return {
            "recordings": self.recordings,
            "words": _count_json(self.words, self.words_interval),
            "characters": _count_json(self.characters, self.characters_interval),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Word errors of this system and of another on the same recordings."""

    title: str  # of the other
    recordings: int
    words: int
    errors: int
    other_errors: int
    interval: Interval | None  # of the difference of the rates; None where there is too little to tell

    @property
    def difference(self) -> float:
        """Return the word error rate of this system without the other's: below 0 if this one is better."""
        return (self.errors - self.other_errors) / self.words if self.words else 0.0

    @property
    def verdict(self) -> str:
        """Say in a sentence whether one is better."""
        points = f"{abs(100 * self.difference):.2f} points"
        if self.interval is None:
            reason = f"fewer than {intervals.LEAST_UNITS} recordings, or the same difference in each"
            return f"Whether one is better cannot be told: {reason}."
        bounds = f"95 % interval {100 * self.interval.low:+.2f} to {100 * self.interval.high:+.2f}"
        if not self.interval.excludes_zero:
            return f"The difference of {points} cannot be told from chance ({bounds})."
        which = "This one is better" if self.interval.high < 0 else "The other is better"
        return f"{which} by {points}, which is more than chance ({bounds})."

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as the result file has it."""
        fields = {name: value for name, value in asdict(self).items() if name != "interval"}
        bounds = [self.interval.low, self.interval.high] if self.interval else None
        return fields | {"difference": self.difference, "interval": bounds, "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Results:
    """All results of a run."""

    system: System
    normalise: bool
    measured: list[MeasuredRecording]  # the worst first
    failures: Mapping[str, Failure]  # by the name of the recording
    by_speaker: bool  # speakers are drawn for the intervals, and not recordings
    total: Group
    languages: list[Group]  # none where there is one language
    speakers: list[Group]  # the worst first, none where there is one speaker or none is known
    comparison: Comparison | None

    @property
    def wordless(self) -> int:
        """Return how many references have no words."""
        return sum(1 for one in self.measured if not one.score.words.units)

    def as_json(self) -> bytes:
        """Return the file of results."""
        content = {
            "version": _VERSION,
            "asr_server": __version__,
            "system": asdict(self.system),
            "normalised": self.normalise,
            "intervals": {"level": intervals.LEVEL, "drawn": "speakers" if self.by_speaker else "recordings"},
            "total": self.total.as_json(),
            "languages": {group.title: group.as_json() for group in self.languages},
            "speakers": {group.title: group.as_json() for group in self.speakers},
            "comparison": self.comparison.as_json() if self.comparison else None,
            "failed": {name: failure.code for name, failure in self.failures.items()},
            "recordings": [one.as_json() for one in self.measured],
        }
        # What UTF-8 cannot encode, in names of files, becomes an escape of JSON.
        return json.dumps(content, ensure_ascii=False, indent=1).encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class OtherSystem:
    """The texts of a system to compare with."""

    title: str
    texts: Mapping[str, str]  # by the name of the recording
    references: Mapping[str, str] | None = None  # the texts that it was measured by, where these may be others


def results(
    system: System,
    references: Sequence[Reference],
    answers: Mapping[str, SystemAnswer],
    failures: Mapping[str, Failure],
    *,
    normalise: bool,
    other: OtherSystem | None,
) -> Results:
    """Measure all recordings that have an answer."""
    measured = [
        _measured(reference, answers[reference.name], normalise, other)
        for reference in references
        if reference.name in answers
    ]
    measured.sort(key=lambda one: (-one.score.words.rate, -one.score.words.errors, one.reference.name))
    languages = _groups(measured, lambda one: one.language or "not known")
    speakers = _groups(measured, lambda one: one.reference.speaker)
    return Results(
        system,
        normalise,
        measured,
        failures,
        intervals.are_drawn([one.reference.speaker for one in measured]),
        _group("all", measured),
        languages if len(languages) > 1 else [],
        [group for group in speakers if group.title] if len(speakers) > 1 else [],
        _comparison(measured, other) if other else None,
    )


def _measured(
    reference: Reference, answer: SystemAnswer, normalise: bool, other: OtherSystem | None
) -> MeasuredRecording:
    language = reference.language or answer.language
    found = score(reference.text, answer.text, language, normalise=normalise, timed=answer.words)
    text = other.texts.get(reference.name) if other else None
    if text is None or (other and other.references and other.references[reference.name] != reference.text):
        return MeasuredRecording(reference, answer, found, None)
    return MeasuredRecording(reference, answer, found, score(reference.text, text, language, normalise=normalise), text)


def _groups(measured: Iterable[MeasuredRecording], title: Callable[[MeasuredRecording], str]) -> list[Group]:
    """Return a group for each title, the worst first."""
    members: defaultdict[str, list[MeasuredRecording]] = defaultdict(list)
    for one in measured:
        members[title(one)].append(one)
    groups = [_group(name, some) for name, some in members.items()]
    return sorted(groups, key=lambda group: (-group.words.rate, group.title))


def _group(title: str, measured: Sequence[MeasuredRecording]) -> Group:
    draws = _draws(measured)
    return Group(
        title,
        len(measured),
        _sum(one.score.words for one in measured),
        draws.rate(_WORD_ERRORS, _WORDS) if draws else None,
        _sum(one.score.characters for one in measured),
        draws.rate(_CHARACTER_ERRORS, _CHARACTERS) if draws else None,
    )


def _draws(measured: Sequence[MeasuredRecording]) -> intervals.Draws | None:
    return intervals.draw([one.counts for one in measured], [one.reference.speaker for one in measured])


def _sum(counts: Iterable[ErrorCount]) -> ErrorCount:
    found = list(counts)
    return ErrorCount(
        sum(one.units for one in found),
        sum(one.substitutions for one in found),
        sum(one.deletions for one in found),
        sum(one.insertions for one in found),
    )


def _comparison(measured: Sequence[MeasuredRecording], other: OtherSystem) -> Comparison:
    both = [one for one in measured if one.other]
    draws = _draws(both)
    sums = [sum(column) for column in zip(*(one.counts for one in both), strict=True)] or [0] * 5
    return Comparison(
        other.title,
        len(both),
        sums[_WORDS],
        sums[_WORD_ERRORS],
        sums[_OTHER_ERRORS],
        draws.difference(_WORD_ERRORS, _OTHER_ERRORS, _WORDS) if draws else None,
    )


def _count_json(count: ErrorCount, interval: Interval | None) -> dict[str, Any]:
    fields: dict[str, Any] = asdict(count) | {"errors": count.errors, "rate": count.rate if count.units else None}
    return fields | ({"interval": [interval.low, interval.high]} if interval else {})


def previous(file: Path) -> OtherSystem:
    """Return the texts of a result file. Raises `UsageError`."""
    try:
        content = json.loads(file.read_bytes())
        if content["version"] != _VERSION:
            raise UsageError(f"{shown(str(file))} is of another version of asr-server.")
        recordings = {str(one["name"]): one for one in content["recordings"]}
        title = System(**content["system"]).title
        texts = {name: str(one["text"]) for name, one in recordings.items()}
        references = {name: str(one["reference"]) for name, one in recordings.items()}
    except OSError as error:
        raise UsageError(f"{shown(str(file))} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{shown(str(file))} is no result of asr-server evaluate --json.") from None
    return OtherSystem(f"{title} ({file.name})", texts, references)
