"""Finished subtitle files held to the rules before they are burned in: what is wrong, line by line. Mends nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from asr_server.cli.failure import Failure, shown
from asr_server.cli.sinks import Sink
from asr_server.cli.sources import Source
from asr_server.service.requests import ResponseFormat
from asr_server.subtitle import lint, srt, timecodes, vtt
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.lint import LintRule

_PARSERS = {ResponseFormat.SRT: srt.parse, ResponseFormat.VTT: vtt.parse}
_UNITS = {
    LintRule.EMPTY: " lines",
    LintRule.LINES: " lines",
    LintRule.LINE_WIDTH: " columns",
    LintRule.READING_SPEED: " %",
}
# Signs that may not stand there: the figure is the line, and there is no limit.
_PLACES = {LintRule.LINE_START, LintRule.LINE_END}


class Reviewed:
    """An outlet before another: everything that goes through is checked, and nothing is held back."""

    def __init__(self, outlet: Sink, response_format: ResponseFormat, rules: CueConfig) -> None:
        self._outlet = outlet
        self._parse = _PARSERS[response_format]
        self._rules = rules
        self.faults: list[str] = []

    def check(self, source: Source) -> None:
        """The other's."""
        self._outlet.check(source)

    def words(self, source: Source, text: str) -> None:
        """The other's."""
        self._outlet.words(source, text)

    def deliver(self, source: Source, content: str) -> None:
        """Handed on, then checked."""
        self._outlet.deliver(source, content)
        self.faults += _named(source.name, faults(self._parse(content), self._rules))

    def drop(self, source: Source) -> None:
        """The other's."""
        self._outlet.drop(source)

    def close(self) -> None:
        """The other's."""
        self._outlet.close()


def is_subtitles(path: Path) -> bool:
    """Whether a name is that of a subtitle file."""
    return _format(path) is not None and not os.path.isdir(path)


def of_file(path: Path, rules: CueConfig) -> list[str]:
    """What is wrong with a file, a line each; broken time lines first. Raises `Failure` where it cannot be read or
    holds no cue."""
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
    cues, lost = _PARSERS[kind](content), timecodes.unread(content)
    if not cues and not lost:
        raise Failure("no_cues", "There is no cue in it.")
    broken = [f"line {number}: times that cannot be read, so no cue" for number in lost]
    return _named(shown(str(path)), [*broken, *faults(cues, rules)])


def faults(cues: list[Cue], rules: CueConfig) -> list[str]:
    """Every broken rule: number and begin of the cue, the rule, figure and limit."""
    return [
        f"cue {fault.cue} at {timecodes.timestamp(cues[fault.cue - 1].start_ms, '.')}: {_figure(fault)}"
        for fault in lint.check(cues, rules)
    ]


def _figure(fault: lint.Violation) -> str:
    if fault.rule in _PLACES:
        return f"{fault.rule} in line {fault.figure}"
    unit = _UNITS.get(fault.rule, " ms")
    return f"{fault.rule} {fault.figure}{unit} (limit {fault.limit}{unit})"


def _format(path: Path) -> ResponseFormat | None:
    found = path.suffix.lower().removeprefix(".")
    return next((form for form in _PARSERS if form.value == found), None)


def _named(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}: {line}" for line in lines]
