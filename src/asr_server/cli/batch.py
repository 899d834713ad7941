"""The common part of transcribe, subtitles and translate: processes all recordings and returns an exit code."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from asr_server.cli import arguments, formats, recording_files
from asr_server.cli.failure import CommandError, Exit, Failure, UsageError, complain, shown
from asr_server.cli.formats import Format
from asr_server.cli.given_text import STANDARD
from asr_server.cli.progress import Event, ProgressBars, clock_text, speed_text
from asr_server.cli.recording_files import RecordingSource, Sink, Skipped
from asr_server.features.alignments.requests import AlignmentRequest
from asr_server.recordings.requests import Request, Result, TranscriptionRequest, TranslationRequest

if TYPE_CHECKING:
    from asr_server.cli.backends import Backend

# Nobody reads a longer list.
_MAX_SKIPPED_SHOWN = 3
_TIME_NOTES = {
    "estimated": "its times are estimated: no aligner helped",
    "mixed": "some of its times are estimated: the aligner did not help with all words",
}


def run(command: str, parsed: argparse.Namespace, request: Request, wanted: Sequence[Format]) -> Exit:
    """Report the skipped files and process the others. Raises `CommandError`, `SettingsError` and `PlanError`."""
    found, skipped = recording_files.find(parsed.files, recursive=parsed.recursive, command=command)
    if not parsed.quiet:
        report_skipped(command, skipped)
    if not found:
        raise CommandError("there is no recording among the files")
    language = request.language if isinstance(request, TranslationRequest) else ""
    targets = _targets(parsed, found, wanted, language)
    sink: Sink
    if targets is not None:
        sink = recording_files.FileSink(targets, replace=parsed.force, skip=parsed.skip_existing)
    elif len(wanted) > 1:
        raise UsageError("several formats are several files: say --beside, or --output DIRECTORY.")
    elif wanted[0] is Format.DOCX:
        raise UsageError(f"{wanted[0]} is no text: say --beside, or --output FILE.")
    else:
        sink = recording_files.StdoutSink(found)
    return RecordingBatch(command, parsed, request, wanted, sink).process(found)


def _targets(
    parsed: argparse.Namespace, found: Sequence[RecordingSource], wanted: Sequence[Format], language: str
) -> recording_files.Targets | None:
    """Return the files for each result, None for standard output. A translation's file name has its `language`. Raises
    `UsageError`."""
    output: str | None = parsed.output
    if output == STANDARD or (output is None and not parsed.beside):
        return None
    endings = {one: f".{language}{formats.suffix(one)}" if language else formats.suffix(one) for one in wanted}
    if output is None:
        return recording_files.targets(found, None, endings)
    place = Path(output)
    # How many recordings a directory holds must not decide what `--output` means.
    several = len(found) > 1 or len(wanted) > 1 or any(map(os.path.isdir, parsed.files))
    if several and os.path.exists(place) and not os.path.isdir(place):
        raise UsageError(f"--output {shown(output)} is a file, and there are several recordings or formats.")
    named = place.suffix or (os.path.exists(place) and not os.path.isdir(place))
    if several or output.endswith("/") or os.path.isdir(place) or not named:
        return recording_files.targets(found, place, endings)
    chosen = {found[0]: {wanted[0]: place}}
    recording_files.check_distinct(chosen)
    return chosen


def report_skipped(command: str, skipped: Sequence[Skipped]) -> None:
    """Report skipped files, one line for each reason."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for item in skipped:
        by_reason[item.reason].append(shown(str(item.path)))
    for reason, names in by_reason.items():
        more = len(names) - _MAX_SKIPPED_SHOWN
        listed = ", ".join(names[:_MAX_SKIPPED_SHOWN]) + (f" and {more} more" if more > 0 else "")
        complain(command, f"skipped ({reason}): {listed}")


def notes(request: Request | AlignmentRequest, result: Result) -> list[str]:
    """Return what the user should know about the quality of subtitles and translations."""
    found = []
    if request.mode == "accurate" and result.time_source in _TIME_NOTES:
        found.append(_TIME_NOTES[result.time_source])
    if result.untranslated:
        found.append(f"{result.untranslated} lines could not be translated and stayed in the source language")
    return found


@dataclass(slots=True)
class Totals:
    """The outcomes of the recordings of a batch."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    audio_s: float = 0.0  # length of the finished recordings; NaN if one has no known length

    def kept(self, count: int) -> str:
        """Return the message of a stopped command: how many of `count` recordings are kept."""
        if not self.done:
            return "stopped before a recording was finished, and no file was written"
        return (
            f"stopped: {self.done} of {count} recordings are finished and kept, and no file of the others was written"
        )

    def summary(self, elapsed_s: float) -> str:
        line = f"{self.done} done"
        line += f", {self.skipped} skipped, their files exist" if self.skipped else ""
        line += f", {self.failed} failed" if self.failed else ""
        if self.audio_s > 0:
            speed = speed_text(self.audio_s, elapsed_s)
            line += f"; {clock_text(self.audio_s)} of audio in {clock_text(elapsed_s)}, {speed} real time"
        return line


@dataclass(slots=True)
class RecordingBatch:
    """One run of a command: many recordings, a few at a time. The failure of one does not stop the others."""

    command: str  # its name
    parsed: argparse.Namespace
    request: Request  # for every recording
    formats: Sequence[Format]  # to write
    sink: Sink
    totals: Totals = field(default_factory=Totals)
    _job_ids: dict[RecordingSource, str] = field(default_factory=dict)
    _streams: bool = field(init=False)
    _bars: ProgressBars = field(init=False)

    def __post_init__(self) -> None:
        """Show no bars if text streams to a terminal: the text itself shows the progress."""
        self._streams = isinstance(self.request, TranscriptionRequest) and self.request.stream
        self._bars = ProgressBars(wanted=not (self.parsed.quiet or (self._streams and sys.stdout.isatty())))

    def process(
        self, sources: Sequence[RecordingSource], backend: AbstractAsyncContextManager[Backend] | None = None
    ) -> Exit:
        """Process all sources with `backend`, by default the one that the arguments name. After Ctrl-C, raises
        `KeyboardInterrupt` with a message about what is kept."""
        from asr_server.cli.backends import backend_of

        try:
            return asyncio.run(self.run(sources, backend or backend_of(self.parsed)))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self.totals.kept(len(sources))) from None

    async def run(self, sources: Sequence[RecordingSource], opening: AbstractAsyncContextManager[Backend]) -> Exit:
        """Process all sources. Raises `NoServer` and `UsageError`, which end the batch."""
        jobs = 1 if self._streams else self.parsed.jobs or arguments.DEFAULT_JOBS
        remaining = iter(sources)
        start_s = time.monotonic()
        async with opening as backend:
            with self._bars:
                try:
                    # All tasks draw from one iterator; on one event loop that needs no lock.
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(jobs, len(sources))):
                            group.create_task(self._process_next(backend, remaining))
                except ExceptionGroup as failed:
                    raise failed.exceptions[0] from None
                finally:  # write finished results that wait for their turn
                    with self._bars.paused():
                        self.sink.close()
        if len(sources) > 1 and not self.parsed.quiet:
            complain(self.command, self.totals.summary(time.monotonic() - start_s))
        return Exit.FAILED if self.totals.failed else Exit.DONE

    async def _process_next(self, backend: Backend, remaining: Iterator[RecordingSource]) -> None:
        for source in remaining:
            try:
                if self.sink.is_done(source):
                    self.totals.skipped += 1
                    continue
                result = await self._process(backend, source)
                await self._deliver(backend, source, result)
                self.totals.done += 1
                self.totals.audio_s += math.nan if result.duration_s is None else result.duration_s
                for note in () if self.parsed.quiet else notes(self.request, result):
                    self._report(source, note)
            except Failure as failure:
                self.totals.failed += 1
                with self._bars.paused():
                    self.sink.drop(source, failure)
                advice = f" The server keeps its job: {self._result_command(source)}" if failure.job_goes_on else ""
                self._report(source, f"{failure}{advice}")
            except (asyncio.CancelledError, OSError):  # OSError: standard output is closed or its disk is full
                if source in self._job_ids:
                    self._report(source, f"goes on as a job: {self._result_command(source)}")
                raise

    async def _process(self, backend: Backend, source: RecordingSource) -> Result:
        with source.open() as recording, self._bars.bar(shown(source.below.name)) as draw:

            def show(event: Event) -> None:
                if event.job:
                    self._job_ids[source] = event.job
                if event.text:
                    self.sink.delta(source, event.text)
                draw(event)

            return await backend.answer_to(recording, self.request, show)

    async def _deliver(self, backend: Backend, source: RecordingSource, result: Result) -> None:
        """Write the result. Its job is removed only after that."""
        try:
            contents = formats.convert(result.content.decode(), self.request.response_format, self.formats)
            with self._bars.paused():
                self.sink.deliver(source, contents)
        except Failure as failure:
            failure.job_goes_on = source in self._job_ids
            raise
        if job := self._job_ids.pop(source, None):
            await backend.forget(job)

    def _result_command(self, source: RecordingSource) -> str:
        """Return a shell command that fetches the job's result, and the format if it is not the requested one."""
        parsed, header = self.parsed, ""
        if arguments.key(parsed):
            key = f"$(cat {shlex.quote(str(parsed.api_key_file))})" if parsed.api_key_file else "$ASR_API_KEY"
            header = f' -H "Authorization: Bearer {key}"'
        command = f"curl {arguments.server(parsed)}/v1/jobs/{self._job_ids[source]}/result{header}"
        given = self.request.response_format
        return command if [given] == list(self.formats) else f"{command} (its result is {given})"

    def _report(self, source: RecordingSource, line: str) -> None:
        with self._bars.paused():
            complain(self.command, f"{source.name}: {line}")
