"""The output of `live`: the open line on a terminal, and finals as text or cues."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TextIO

from asr_server.cli import formats
from asr_server.cli.formats import Format
from asr_server.client.live import Line
from asr_server.core.transcript import Word
from asr_server.subtitle.cue_segmentation import Passage, cues
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.text import words

_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"


class LineView:
    """Shows the open line, with committed words in bold; only finals where the output is not a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()

    def show(self, line: Line) -> None:
        """Replace the open line."""
        if line.words and not line.speakers:  # the text was shown before its times came
            return
        if line.final:
            if line.text:
                self._write((_CLEAR if self._terminal else "") + _spoken(line) + "\n")
        elif self._terminal:
            self._write(_CLEAR + _fit(line, shutil.get_terminal_size().columns - 1))

    def clear(self) -> None:
        """Remove the open line, so that a message can take its place."""
        if self._terminal:
            self._write(_CLEAR)

    def close(self) -> None:
        """Do nothing: no line is held back."""

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class FinalsWriter:
    """Writes each final when it comes: its text, or its cues when the times of its words are there."""

    def __init__(self, out: TextIO, wanted: Format) -> None:
        self._out = out
        self._wanted = wanted
        self._head = formats.render([], wanted) if wanted in formats.CUE_FORMATS else ""
        self._untimed: Line | None = None
        self._cues = 0
        self._write(self._head)

    def show(self, line: Line) -> None:
        """Write a final. One whose times do not come before the next one, after a broken connection, is one cue."""
        if not line.final or not line.text:
            return
        if self._wanted is Format.TEXT:
            self._write(f"{_spoken(line)}\n")
        elif line.words:
            self._untimed = None
            self._write_cues(cues(_passages(line), CueConfig(), round(1000 * line.end_s)))
        else:
            self.close()
            self._untimed = line

    def clear(self) -> None:
        """Do nothing: there is no open line."""

    def close(self) -> None:
        """Write what still waits for its times."""
        if line := self._untimed:
            self._untimed = None
            self._write_cues([Cue(round(1000 * line.start_s), round(1000 * line.end_s), line.text)])

    def _write_cues(self, cues: Sequence[Cue]) -> None:
        self._write(formats.render(cues, self._wanted, self._cues + 1).removeprefix(self._head))
        self._cues += len(cues)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class InOrder:
    """Passes lines on to a view: open ones at once, finals in their order and once, each when it is ready."""

    def __init__(self, view: LineView | FinalsWriter, is_ready: Callable[[Line], bool]) -> None:
        self._view = view
        self._is_ready = is_ready
        self._waiting: dict[int, Line] = {}
        self._passed = 0

    def show(self, line: Line) -> None:
        """Show a line, or another version of it."""
        if not line.final:
            self._view.show(line)
        elif line.text and line.utterance > self._passed:
            self._waiting[line.utterance] = line
            while self._waiting and self._is_ready(next(iter(self._waiting.values()))):
                self._pass_first()

    def clear(self) -> None:
        """Remove the open line, so that a message can take its place."""
        self._view.clear()

    def close(self) -> None:
        """Pass on what waits: nothing more comes."""
        while self._waiting:
            self._pass_first()
        self._view.close()

    def _pass_first(self) -> None:
        self._passed = next(iter(self._waiting))
        self._view.show(self._waiting.pop(self._passed))


def has_speakers(line: Line) -> bool:
    """True if the speaker of every word is known, or will never be."""
    return line.speakers_settled or all(run.speaker is not None for run in line.speakers)


@dataclass(frozen=True, slots=True)
class View:
    """All that shows or writes lines."""

    views: Sequence[LineView | FinalsWriter | InOrder]
    timed: bool = False  # finals come a second time, with the times of their words
    channels: int = 1  # each has a last line
    _ended: set[str | None] = field(default_factory=set)

    def show(self, line: Line) -> bool:
        """Returns whether it was the last line of the last channel."""
        for view in self.views:
            view.show(line)
        if line.ending == "flush" and not (self.timed and line.text and not line.words):
            self._ended.add(line.speaker)
        return len(self._ended) == self.channels

    def clear(self) -> None:
        """Remove the open line, so that a message can take its place."""
        for view in self.views:
            view.clear()


def _spoken(line: Line) -> str:
    """Return the text; where speakers are distinguished, a line for each run of one speaker."""
    if not line.speakers:
        return line.text
    texts = ((run.speaker, run.text.strip()) for run in line.speakers)
    return "\n".join(f"{speaker}: {text}" if speaker else text for speaker, text in texts)


def _passages(line: Line) -> list[Passage]:
    """Return the words of a line, those of each speaker by themselves."""
    if not line.speakers:
        return [Passage(line.text, line.words)]
    spoken = [word.text for word in line.words]
    ends = accumulate(len(gap) + len(word) for gap, word in zip(words.gaps(line.text, spoken), spoken, strict=True))
    run_ends = list(accumulate(len(run.text) for run in line.speakers))
    of_runs: list[list[Word]] = [[] for _ in run_ends]
    for word, end in zip(line.words, ends, strict=True):
        of_runs[min(bisect_left(run_ends, end), len(of_runs) - 1)].append(word)
    passages = zip(line.speakers, of_runs, strict=True)
    return [Passage(run.text.strip(), own, run.speaker or "") for run, own in passages if own]


def _fit(line: Line, columns: int) -> str:
    """Return the end of the line, as much as fits: new words come at the end. With two channels, whose it is comes
    first."""
    whose = f"{line.speaker}: " if line.speaker else ""
    columns -= len(whose)
    tentative = line.tentative[-columns:]
    room = columns - len(tentative)
    committed = line.committed[-room:] if room else ""
    return f"{whose}{_BOLD}{committed}{_PLAIN}{tentative}"
