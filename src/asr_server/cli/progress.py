"""A bar on stderr for each recording under way: how far, how fast, how long still. Nothing where nobody looks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress, Task, TaskID

_NAME_COLUMNS = 32


class ProgressBars:
    """All bars of a command. Everything else that is written to the terminal meanwhile goes through `aside`."""

    def __init__(self, *, wanted: bool) -> None:
        self._progress = _progress() if wanted and sys.stderr.isatty() else None
        self._live: Live | None = None

    def __enter__(self) -> ProgressBars:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        """A new display each time: one that goes on would clear as many lines above it as it had at its end."""
        if self._progress:
            from rich.live import Live

            self._live = Live(
                self._progress,
                console=self._progress.console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def _stop(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @contextmanager
    def bar(self, name: str) -> Iterator[ProgressBar]:
        """A bar while the block runs."""
        if not self._progress:
            yield ProgressBar(None, None, self._draw)
            return
        task = self._progress.add_task(name, total=None, began_s=time.monotonic())
        try:
            yield ProgressBar(self._progress, task, self._draw)
        finally:
            self._progress.remove_task(task)

    def _draw(self) -> None:
        """Now rather than with the next tick: a recording may be over before it, and its speed never seen."""
        if self._live:
            self._live.refresh()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bars are gone while the block writes."""
        self._stop()
        try:
            yield
        finally:
            self._start()


class ProgressBar:
    """One recording's."""

    def __init__(self, progress: Progress | None, task: TaskID | None, draw: Callable[[], None]) -> None:
        self._progress = progress
        self._task = task
        self._draw = draw

    def length(self, seconds: float) -> None:
        """How long the recording is; until then the bar only shows that something moves."""
        if self._progress and self._task is not None:
            self._progress.update(self._task, total=seconds)

    def reached(self, seconds: float) -> None:
        """How much of it is text."""
        if self._progress and self._task is not None:
            self._progress.update(self._task, completed=seconds)
            self._draw()


def speed_text(reached_s: float, took_s: float) -> str:
    """Seconds of audio for each second of waiting, as people read it; "" before anything is known."""
    if reached_s <= 0 or took_s <= 0:
        return ""
    return f"{reached_s / took_s:.1f}x"


def left_text(reached_s: float, total_s: float | None, took_s: float) -> str:
    """Time still to wait at the speed so far; "" where it cannot be known."""
    if reached_s <= 0 or total_s is None:
        return ""
    left_s = max(0, round((total_s - reached_s) * took_s / reached_s))
    minutes, seconds = divmod(left_s, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Pace(ProgressColumn):
        """Speed and remaining time, from the beginning on: spans end in leaps, and a moving window would jump."""

        def render(self, task: Task) -> Text:
            took_s = time.monotonic() - task.fields["began_s"]
            pace = speed_text(task.completed, took_s), left_text(task.completed, task.total, took_s)
            return Text("  ".join(part for part in pace if part), no_wrap=True)

    name = Column(max_width=_NAME_COLUMNS, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(),
        Pace(),
        console=Console(stderr=True),
    )
