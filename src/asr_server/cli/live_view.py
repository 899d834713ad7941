"""What `live` shows and writes: the open line on a terminal, and finals as text or cues."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from asr_server.cli import formats
from asr_server.cli.formats import Format
from asr_server.client.live import Line
from asr_server.subtitle.cue_config import CueConfig
from asr_server.subtitle.cue_segmentation import cues
from asr_server.subtitle.cues import Cue
from asr_server.subtitle.units import Passage

_BOLD, _PLAIN, _CLEAR = "\x1b[1m", "\x1b[0m", "\r\x1b[2K"


class LineView:
    """Shows the open line, with committed words in bold; only finals where the output is not a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()

    def show(self, line: Line) -> None:
        """Replace the open line."""
        if line.words:  # the text was shown before its times came
            return
        if line.final:
            if line.text:
                self._write((_CLEAR if self._terminal else "") + line.text + "\n")
        elif self._terminal:
            self._write(_CLEAR + _fit(line, shutil.get_terminal_size().columns - 1))

    def clear(self) -> None:
        """Remove the open line, so that a message can take its place."""
        if self._terminal:
            self._write(_CLEAR)

    def close(self) -> None:
        """Nothing is held back."""

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
            self._write(f"{line.text}\n")
        elif line.words:
            self._untimed = None
            self._write_cues(cues([Passage(line.text, line.words)], CueConfig(), round(1000 * line.end_s)))
        else:
            self.close()
            self._untimed = line

    def clear(self) -> None:
        """There is no open line."""

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


@dataclass(frozen=True, slots=True)
class View:
    """All that shows or writes lines. `timed`: finals come a second time, with the times of their words."""

    views: Sequence[LineView | FinalsWriter]
    timed: bool = False

    def show(self, line: Line) -> bool:
        """Returns whether it was the last line."""
        for view in self.views:
            view.show(line)
        return line.ending == "flush" and not (self.timed and line.text and not line.words)

    def clear(self) -> None:
        """Remove the open line, so that a message can take its place."""
        for view in self.views:
            view.clear()


def _fit(line: Line, columns: int) -> str:
    """The end of the line, as much as fits: new words come at the end."""
    tentative = line.tentative[-columns:]
    room = columns - len(tentative)
    committed = line.committed[-room:] if room else ""
    return f"{_BOLD}{committed}{_PLAIN}{tentative}"
