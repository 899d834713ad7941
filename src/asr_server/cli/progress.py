"""A progress bar on stderr for each recording: speed and remaining time. Shows nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress, Task

_NAME_COLUMNS = 32


class Event(NamedTuple):
    """News of a recording that is being processed."""

    text: str = ""  # to be appended to all text so far
    job: str = ""  # the id of its job, which the server completes even if nobody waits
    duration_s: float | None = None  # the length of the recording
    done_s: float | None = None  # it is transcribed up to this time


class ProgressBars:
    """The bars of a command. Other output to the terminal must be written inside `paused`."""

    def __init__(self, *, wanted: bool) -> None:
        self._progress = _progress() if wanted and sys.stderr.isatty() else None
        self._live: Live | None = None

    def __enter__(self) -> ProgressBars:
        """Make a new display each time: a resumed one would clear as many lines above it as it last had."""
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
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @contextmanager
    def bar(self, name: str) -> Iterator[Callable[[Event], None]]:
        """Show a bar while the block runs. Without a length the bar only moves, without a remaining time."""
        if not (progress := self._progress):
            yield lambda event: None
            return
        task = progress.add_task(name, total=None, began_s=time.monotonic())

        def draw() -> None:
            """Redraw now: a short task may end before the next tick, and its bar and speed would not be shown."""
            if self._live:
                self._live.refresh()

        def show(event: Event) -> None:
            progress.update(task, total=event.duration_s, completed=event.done_s)
            draw()

        draw()
        try:
            yield show
        finally:
            progress.remove_task(task)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bars while the block runs."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()


def speed_text(done_s: float, elapsed_s: float) -> str:
    """Seconds of audio per second of processing ("12.3x"); "" before anything is done."""
    if done_s <= 0 or elapsed_s <= 0:
        return ""
    return f"{done_s / elapsed_s:.1f}x"


def remaining_text(done_s: float, total_s: float | None, elapsed_s: float) -> str:
    """Return the remaining time at the speed so far; "" if it is unknown."""
    if done_s <= 0 or total_s is None:
        return ""
    return f"{clock_text(max(0.0, (total_s - done_s) * elapsed_s / done_s))} left"


def clock_text(seconds: float) -> str:
    """Minutes and seconds (1:05), with hours from 60 minutes on (1:00:00)."""
    minutes, whole_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_s:02}" if hours else f"{minutes}:{whole_s:02}"


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Pace(ProgressColumn):
        """Speed and remaining time, averaged since the start: spans are long, and a moving window would jump."""

        def render(self, task: Task) -> Text:
            elapsed_s = time.monotonic() - task.fields["began_s"]
            pace = speed_text(task.completed, elapsed_s), remaining_text(task.completed, task.total, elapsed_s)
            return Text("  ".join(part for part in pace if part), no_wrap=True)

    name = Column(max_width=_NAME_COLUMNS, no_wrap=True, overflow="ellipsis")
    return Progress(
        TextColumn("{task.description}", markup=False, table_column=name),
        BarColumn(),
        Pace(),
        console=Console(stderr=True),
    )
