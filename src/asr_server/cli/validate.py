"""Validates subtitle files against the rules of docs/use/subtitles.md."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from asr_server.cli.failure import Failure, shown
from asr_server.cli.formats import Format
from asr_server.cli.sinks import Contents, Existing, FileSink, Targets
from asr_server.cli.sources import Source
from asr_server.subtitle import files, lint
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.subtitle.lint import LintRule

_PARSERS = {Format.SRT: files.parse_srt, Format.VTT: files.parse_vtt}
_UNITS = {
    LintRule.EMPTY: " lines",
    LintRule.LINES: " lines",
    LintRule.LINE_WIDTH: " columns",
    LintRule.READING_SPEED: " %",
}
# The figure of these rules is the number of a line, and there is no limit.
_LINE_RULES = {LintRule.LINE_START, LintRule.LINE_END}


class ValidatingSink(FileSink):
    """Writes the files and validates each. `violations`: a line for each broken rule."""

    def __init__(self, targets: Targets, config: CueConfig, existing: Existing) -> None:
        super().__init__(targets, existing)
        self._config = config
        self.violations: list[str] = []

    def deliver(self, source: Source, contents: Contents) -> None:
        """Written first: files with violations are kept. All of them have the same cues."""
        super().deliver(source, contents)
        one = next(one for one in contents if one in _PARSERS)
        self.violations += _prefixed(source.name, violations(_PARSERS[one](contents[one]), self._config))


def is_subtitles(path: Path) -> bool:
    """True if the path is a subtitle file by its name."""
    return _format(path) is not None and not os.path.isdir(path)


def of_file(path: Path, config: CueConfig) -> list[str]:
    """Return a line for each violation in a file; unreadable times first. Raises `Failure` where the file cannot be
    read or has no cue."""
    kind = _format(path)
    assert kind is not None
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure("no_such_file", "There is no such file.") from None
    except OSError as error:
        raise Failure("cannot_read", f"{error.strerror}.") from None
    except UnicodeDecodeError:
        raise Failure("cannot_read", "It is not UTF-8.") from None
    cues, unreadable = _PARSERS[kind](content), files.unread_time_lines(content)
    if not cues and not unreadable:
        raise Failure("no_cues", "There is no cue in it.")
    lost = [f"line {number}: times that cannot be read, so no cue" for number in unreadable]
    return _prefixed(shown(str(path)), [*lost, *violations(cues, config)])


def violations(cues: list[Cue], config: CueConfig) -> list[str]:
    """Return a line for each violation: number and start of the cue, the rule, figure and limit."""
    return [
        f"cue {violation.cue} at {files.timestamp(cues[violation.cue - 1].start_ms, '.')}: {_figure(violation)}"
        for violation in lint.check(cues, config)
    ]


def _figure(violation: lint.Violation) -> str:
    if violation.rule in _LINE_RULES:
        return f"{violation.rule} in line {violation.figure}"
    unit = _UNITS.get(violation.rule, " ms")
    return f"{violation.rule} {violation.figure}{unit} (limit {violation.limit}{unit})"


def _format(path: Path) -> Format | None:
    found = path.suffix.lower().removeprefix(".")
    return next((form for form in _PARSERS if form.value == found), None)


def _prefixed(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}: {line}" for line in lines]
