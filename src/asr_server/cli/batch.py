"""The common part of transcribe, subtitles and translate: from parsed arguments over all recordings to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from asr_server.cli import arguments, formats, recording_files
from asr_server.cli.backend import AnswerText, Backend, BackendResult, JobAccepted, RecordingDuration, RecordingProgress
from asr_server.cli.failure import AlreadyDone, Exit, Failure, NoServer, UsageError, complain, shown
from asr_server.cli.formats import Format
from asr_server.cli.progress import ProgressBar, ProgressBars, clock_text, speed_text
from asr_server.cli.recording_files import Existing, RecordingSource, Sink, Skipped
from asr_server.recordings.requests import Request, TranscriptionRequest, TranslationRequest

# Nobody reads a longer list.
_MAX_SKIPPED_SHOWN = 3
STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command."""

    command: str  # its name
    parsed: argparse.Namespace
    request: Request  # for every recording
    formats: Sequence[Format]  # to write

    def run(self) -> Exit:
        """Raises `UsageError`, `NoServer`, `SettingsError` and `PlanError`."""
        found = self.find()
        return self.process(found, self.sink(found)) if found else Exit.FAILED

    def find(self) -> list[RecordingSource]:
        """Return all recordings. Reports where there are none, and what was skipped."""
        if self.parsed.job and self.parsed.local:
            raise UsageError("--job is for a server; leave out --local.")
        found, skipped = recording_files.find(self.parsed.files, recursive=self.parsed.recursive, command=self.command)
        if not self.parsed.quiet:
            self.report(skipped)
        if not found:
            complain(self.command, "there is no recording among the files")
        return found

    def sink(self, found: Sequence[RecordingSource]) -> Sink:
        """Return the sink for the results. Raises `UsageError`."""
        targets = self.targets(found)
        if targets is not None:
            return recording_files.FileSink(targets, self.existing)
        if len(self.formats) > 1:
            raise UsageError("several formats are several files: say --beside, or --output DIRECTORY.")
        if self.formats[0].is_binary:
            raise UsageError(f"{self.formats[0]} is no text: say --beside, or --output FILE.")
        return recording_files.StdoutSink(found)

    @property
    def existing(self) -> Existing:
        """Return what is done about files that exist."""
        if self.parsed.force:
            return Existing.REPLACE
        return Existing.KEEP if self.parsed.skip_existing else Existing.FAIL

    def targets(self, found: Sequence[RecordingSource]) -> recording_files.Targets | None:
        """Return the files for each result; None for standard output. Raises `UsageError`."""
        output: str | None = self.parsed.output
        if output == STANDARD_OUTPUT or (output is None and not self.parsed.beside):
            return None
        tag = f".{self.request.target_language}" if isinstance(self.request, TranslationRequest) else ""
        endings = {one: f"{tag}{one.suffix}" for one in self.formats}
        if output is None:
            return recording_files.targets(found, None, endings)
        place = Path(output)
        # How many recordings a directory holds must not decide what `--output` means.
        several = len(found) > 1 or len(self.formats) > 1 or any(map(os.path.isdir, self.parsed.files))
        if several and os.path.exists(place) and not os.path.isdir(place):
            raise UsageError(f"--output {shown(output)} is a file, and there are several recordings or formats.")
        named = place.suffix or (os.path.exists(place) and not os.path.isdir(place))
        if several or output.endswith("/") or os.path.isdir(place) or not named:
            return recording_files.targets(found, place, endings)
        chosen = {found[0]: {self.formats[0]: place}}
        recording_files.check_distinct(chosen)
        return chosen

    def process(
        self, found: Sequence[RecordingSource], sink: Sink, backend: AbstractAsyncContextManager[Backend] | None = None
    ) -> Exit:
        """Process all recordings, with the backend that the arguments name, or with another. After Ctrl-C, raises
        `KeyboardInterrupt` with what is kept."""
        totals = Totals()
        try:
            return asyncio.run(self._process(found, sink, backend or backend_of(self.parsed), totals))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(totals.kept(len(found))) from None

    async def _process(
        self,
        found: Sequence[RecordingSource],
        sink: Sink,
        chosen: AbstractAsyncContextManager[Backend],
        totals: Totals,
    ) -> Exit:
        parsed, request = self.parsed, self.request
        stream = isinstance(request, TranscriptionRequest) and request.stream
        jobs = 1 if stream else parsed.jobs or arguments.DEFAULT_JOBS
        # Text that streams to a terminal shows the progress by itself.
        bars = ProgressBars(wanted=not (parsed.quiet or (stream and sys.stdout.isatty())))
        async with chosen as backend:
            with bars:
                return await RecordingBatch(self, backend, sink, bars, totals).run(found, jobs)

    def report(self, skipped: Sequence[Skipped]) -> None:
        """Report skipped files, one line for each reason."""
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for item in skipped:
            by_reason[item.reason].append(shown(str(item.path)))
        for reason, names in by_reason.items():
            more = len(names) - _MAX_SKIPPED_SHOWN
            listed = ", ".join(names[:_MAX_SKIPPED_SHOWN]) + (f" and {more} more" if more > 0 else "")
            complain(self.command, f"skipped ({reason}): {listed}")


def backend_of(parsed: argparse.Namespace) -> AbstractAsyncContextManager[Backend]:
    """Return what processes recordings: a worker with `--local`, or a server. Raises `UsageError`."""
    if parsed.local:
        from asr_server.cli.backends import LocalBackend, local_settings

        return LocalBackend(local_settings(parsed.model))
    from asr_server.cli.backends import RemoteBackend

    return RemoteBackend(arguments.server(parsed), arguments.key(parsed), as_job=parsed.job)


@dataclass(slots=True)
class Totals:
    """The outcomes of the recordings of a batch."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    audio_s: float | None = 0.0  # length of those that are done; None if one has no known length

    def count(self, duration_s: float | None) -> None:
        """Count a recording that is done."""
        self.done += 1
        self.audio_s = None if self.audio_s is None or duration_s is None else self.audio_s + duration_s

    def kept(self, count: int) -> str:
        """Return what is kept of `count` recordings when the command is stopped."""
        if not self.done:
            return "stopped before a recording was finished, and no file was written"
        return (
            f"stopped: {self.done} of {count} recordings are finished and kept, and no file of the others was written"
        )

    def summary(self, elapsed_s: float) -> str:
        """Return the totals in one line."""
        parts = [f"{self.done} done"]
        parts += [f"{self.skipped} skipped, their files exist"] if self.skipped else []
        parts += [f"{self.failed} failed"] if self.failed else []
        line = ", ".join(parts)
        if self.audio_s:
            speed = speed_text(self.audio_s, elapsed_s)
            line += f"; {clock_text(self.audio_s)} of audio in {clock_text(elapsed_s)}, {speed} real time"
        return line


@dataclass(frozen=True, slots=True)
class RecordingBatch:
    """Processes many recordings, a few at a time. The failure of one does not stop the others."""

    of: Run
    backend: Backend
    sink: Sink
    bars: ProgressBars
    totals: Totals = field(default_factory=Totals)
    _job_ids: dict[RecordingSource, str] = field(default_factory=dict)

    async def run(self, sources: Sequence[RecordingSource], jobs: int) -> Exit:
        """Process all sources, `jobs` at a time. Raises `NoServer` and `UsageError`, which end the batch."""
        remaining = iter(sources)
        start_s = time.monotonic()
        try:
            # All tasks draw from one iterator; on one event loop that needs no lock.
            async with asyncio.TaskGroup() as group:
                for _ in range(min(jobs, len(sources))):
                    group.create_task(self._process_next(remaining))
        except ExceptionGroup as failed:
            cause = failed.exceptions[0]
            if isinstance(cause, NoServer):  # finished results that wait for their turn are written
                with self.bars.paused():
                    self.sink.close()
            raise cause from None
        except asyncio.CancelledError:
            with self.bars.paused():
                self.sink.close()
            raise
        if len(sources) > 1 and not self.of.parsed.quiet:
            with self.bars.paused():
                complain(self.of.command, self.totals.summary(time.monotonic() - start_s))
        return Exit.FAILED if self.totals.failed else Exit.DONE

    async def _process_next(self, remaining: Iterator[RecordingSource]) -> None:
        """Process sources until none remains."""
        for source in remaining:
            try:
                result = await self._process(source)
                await self._deliver(source, result)
                self.totals.count(result.duration_s)
                for note in () if self.of.parsed.quiet else result.notes:
                    self._report(source, note)
            except AlreadyDone:
                self.totals.skipped += 1
            except Failure as failure:
                self.totals.failed += 1
                with self.bars.paused():
                    self.sink.drop(source, failure)
                advice = f" Ask again: {self._result_command(source)}" if failure.job_goes_on else ""
                self._report(source, f"{failure.code}: {failure.message}{advice}")
            except (asyncio.CancelledError, OSError):  # OSError: standard output is closed or its disk is full
                if source in self._job_ids:
                    self._report(source, f"goes on as a job: {self._result_command(source)}")
                raise

    async def _process(self, source: RecordingSource) -> BackendResult:
        self.sink.check(source)
        with source.open() as recording, self.bars.bar(shown(source.below.name)) as bar:
            result: BackendResult | None = None
            async with aclosing(self.backend.process(recording, self.of.request)) as events:
                # Read to the end: the server counts a client that leaves early as cancelled.
                async for event in events:
                    if isinstance(event, BackendResult):
                        result = event
                    else:
                        self._show(source, event, bar)
        if result is None:
            raise Failure("no_answer", "The transcription ended without a result.")
        return result

    def _show(
        self,
        source: RecordingSource,
        event: JobAccepted | RecordingDuration | RecordingProgress | AnswerText,
        bar: ProgressBar,
    ) -> None:
        match event:
            case JobAccepted():
                self._job_ids[source] = event.job
            case RecordingDuration():
                bar.set_duration(event.seconds)
            case RecordingProgress():
                bar.set_done(event.seconds)
            case AnswerText():
                self.sink.delta(source, event.text)

    async def _deliver(self, source: RecordingSource, result: BackendResult) -> None:
        """Write the result. Its job is removed only after that."""
        try:
            contents = formats.convert(result.content, self.of.request.output, self.of.formats)
            with self.bars.paused():
                self.sink.deliver(source, contents)
        except Failure as failure:
            kept = ""
            if source in self._job_ids:
                kept = f" The server keeps the result: {self._result_command(source)}"
            raise Failure(failure.code, f"{failure.message}{kept}") from failure
        if job := self._job_ids.pop(source, None):
            await self.backend.forget(job)

    def _result_command(self, source: RecordingSource) -> str:
        """Return how to continue with the job of a source, and what its result is if that is not what was asked for."""
        command = arguments.result_command(self.of.parsed, self._job_ids[source])
        given = self.of.request.output.response_format.value
        return command if [given] == list(self.of.formats) else f"{command} (its result is {given})"

    def _report(self, source: RecordingSource, line: str) -> None:
        with self.bars.paused():
            complain(self.of.command, f"{source.name}: {line}")
