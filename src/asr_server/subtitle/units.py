"""Units: words, or phrases of scripts without spaces, which cues and lines keep together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from asr_server.core.transcript import TimeSource, Word
from asr_server.subtitle.cues import CueConfig, SpeakerStyle, named, text_lines
from asr_server.text import boundary, words
from asr_server.text.boundary import Boundary
from asr_server.text.joining import joint
from asr_server.text.scripts import is_unspaced
from asr_server.text.words import measure

_BREAKABLE_SPACE = re.compile(r"[^\S\u00a0\u2007\u202f]+")


@dataclass(frozen=True, slots=True)
class Passage:
    """The speech of one speaker in one span."""

    text: str
    words: Sequence[Word]  # with their times, in order
    speaker: str = ""  # "" for none


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, or a phrase of a script without spaces."""

    text: str
    start_ms: int
    end_ms: int
    spaced: bool  # the text has a space before it
    speaker: str
    columns: int  # see `columns.Width`; the name of the speaker counts too, where it will be shown before the unit
    wide: int  # as `columns`
    ends: Boundary  # the boundary at its end


def units(passages: Iterable[Passage], rules: CueConfig) -> list[Unit]:
    """Return all words of the passages; the words of a phrase are one unit if they fit on a line and have no pause
    between.

    Start times that do not rise are moved to later.
    """
    single = list(_rising(_single(passages)))
    found = [_merged(group) for run in _runs(single, rules) for group in _groups(run, rules)]
    if rules.speaker_style is SpeakerStyle.NAME:
        speakers = ["", *(unit.speaker for unit in found)]
        for i, (before, unit) in enumerate(zip(speakers, found, strict=False)):
            if unit.speaker not in ("", before):
                found[i] = leave_room(unit, unit.speaker)
    return found


def leave_room(unit: Unit, speaker: str) -> Unit:
    """Return the unit with the columns of the name that will be shown before it."""
    columns, wide = measure(named(speaker, unit.text))
    return replace(unit, columns=columns, wide=wide)


def untimed_units(text: str, rules: CueConfig) -> list[Unit]:
    """Return the units of a text that has no times: all are 0."""
    passage = Passage(text, [Word(word, 0, 0, TimeSource.ESTIMATED) for word in words.split(text)])
    return [_merged(group) for run in _runs(list(_single([passage])), rules) for group in _groups(run, rules)]


def _single(passages: Iterable[Passage]) -> Iterator[Unit]:
    """Yield each word as a unit. A space in an unspaced script counts as the end of a clause."""
    last: Unit | None = None
    for passage in passages:
        gaps = words.gaps(passage.text, [word.text for word in passage.words])
        for i, (word, gap) in enumerate(zip(passage.words, gaps, strict=True)):
            text = _BREAKABLE_SPACE.sub(" ", " ".join(text_lines(word.text)))
            if not text:  # nothing but control characters
                continue
            spaced = bool(last and (gap if i else joint(last.text, text)))
            if last:
                pause = spaced and last.ends is Boundary.NONE and is_unspaced(last.text[-1])
                yield replace(last, ends=Boundary.CLAUSE) if pause else last
            last = Unit(
                text, word.start_ms, word.end_ms, spaced, passage.speaker, *measure(text), ends=boundary.after(text)
            )
    if last:
        yield last


def _rising(single: Iterable[Unit]) -> Iterator[Unit]:
    """Makes the start times rise: speakers may overlap, cues may not."""
    least = 0
    for unit in single:
        start = max(unit.start_ms, least)
        yield (
            unit
            if start == unit.start_ms < unit.end_ms
            else replace(unit, start_ms=start, end_ms=max(unit.end_ms, start + 1))
        )
        least = start + 1


def _runs(single: Sequence[Unit], rules: CueConfig) -> Iterator[list[Unit]]:
    """Maximal runs of one speaker's words without space, punctuation or pause between them."""
    run: list[Unit] = []
    for unit in single:
        if run and (unit.spaced or unit.speaker != run[-1].speaker or _separated(run[-1], unit, rules)):
            yield run
            run = []
        run.append(unit)
    if run:
        yield run


def _separated(before: Unit, unit: Unit, rules: CueConfig) -> bool:
    silence = unit.start_ms - before.end_ms
    return before.ends > Boundary.NONE or (silence > 0 and silence >= rules.pause_ms)


def _groups(run: Sequence[Unit], rules: CueConfig) -> Iterator[list[Unit]]:
    """Yield the run divided at the ends of phrases, and where a line or cue would become too long."""
    if len(run) == 1:
        yield list(run)
        return
    ends = words.phrase_ends("".join(unit.text for unit in run))
    group: list[Unit] = []
    offset = 0
    for unit in run:
        if group and (
            offset in ends
            or sum(u.columns for u in group) + unit.columns > rules.max_line_columns
            or unit.end_ms - group[0].start_ms > rules.max_duration_ms
        ):
            yield group
            group = []
        group.append(unit)
        offset += len(unit.text)
    yield group


def _merged(group: Sequence[Unit]) -> Unit:
    if len(group) == 1:
        return group[0]
    first, last = group[0], group[-1]
    text = "".join(unit.text for unit in group)
    return Unit(text, first.start_ms, last.end_ms, first.spaced, first.speaker, *measure(text), ends=last.ends)
