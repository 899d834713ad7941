"""What transcribe, subtitles and translate share: from parsed arguments over all recordings to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from asr_server.cli import arguments, sinks, sources
from asr_server.cli.backend import Backend, BackendResult, Duration, JobAccepted, Progress, TextDelta
from asr_server.cli.failure import Exit, Failure, NoServer, UsageError, complain, shown
from asr_server.cli.progress import ProgressBar, ProgressBars
from asr_server.cli.sinks import Sink
from asr_server.cli.sources import Skipped, Source
from asr_server.service.requests import Request, TranscriptionRequest, TranslationRequest

# Nobody reads a longer list.
_MAX_SKIPPED_SHOWN = 20
STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command: its name, its arguments, and the request for every recording."""

    command: str
    parsed: argparse.Namespace
    request: Request

    def run(self) -> Exit:
        """Raises `UsageError`, `NoServer`, `SettingsError` and `PlanError`."""
        found = self.find()
        return self.process(found, self.sink(found)) if found else Exit.FAILED

    def find(self) -> list[Source]:
        """All recordings. Reports where there are none, and what was skipped."""
        if self.parsed.job and self.parsed.local:
            raise UsageError("--job is for a server; leave out --local.")
        found, skipped = sources.find(self.parsed.files, recursive=self.parsed.recursive)
        if not self.parsed.quiet:
            self._report(skipped)
        if not found:
            complain(self.command, "there is no recording among the files")
        return found

    def sink(self, found: Sequence[Source]) -> Sink:
        """Where the results go. Raises `UsageError`."""
        targets = self.targets(found)
        return sinks.StdoutSink(found) if targets is None else sinks.FileSink(targets, force=self.parsed.force)

    def targets(self, found: Sequence[Source]) -> dict[Source, Path] | None:
        """The file for each result; None for standard output. Raises `UsageError`."""
        place: Path | None = self.parsed.output
        if place == STANDARD_OUTPUT or (place is None and not self.parsed.beside):
            return None
        tag = self.request.target_language if isinstance(self.request, TranslationRequest) else ""
        ending = sinks.suffix(self.request.output.response_format, tag)
        if place is None:
            return sinks.targets(found, None, ending)
        # How many recordings a directory holds must not decide what `--output` means.
        directory_named = any(os.path.isdir(argument) for argument in self.parsed.files)
        if len(found) == 1 and not os.path.isdir(place) and not directory_named:
            return sinks.single(found[0], place)
        if os.path.exists(place) and not os.path.isdir(place):
            raise UsageError(f"--output {shown(str(place))} is a file, and there are several recordings.")
        return sinks.targets(found, place, ending)

    def process(self, found: Sequence[Source], sink: Sink) -> Exit:
        """Process all recordings."""
        return asyncio.run(self._process(found, sink))

    async def _process(self, found: Sequence[Source], sink: Sink) -> Exit:
        parsed, request = self.parsed, self.request
        stream = isinstance(request, TranscriptionRequest) and request.stream
        jobs = 1 if stream else parsed.jobs or arguments.DEFAULT_JOBS
        # Text that streams to a terminal shows the progress by itself.
        bars = ProgressBars(wanted=not (parsed.quiet or (stream and sys.stdout.isatty())))
        async with self._backend() as backend:
            with bars:
                return await Batch(self.command, backend, sink, bars, request, parsed.quiet).run(found, jobs)

    def _backend(self) -> AbstractAsyncContextManager[Backend]:
        if self.parsed.local:
            from asr_server.cli.local_backend import LocalBackend, local_settings

            return LocalBackend(local_settings(self.parsed.model))
        from asr_server.cli.remote_backend import RemoteBackend

        return RemoteBackend(self.parsed.server, arguments.key(self.parsed), as_job=self.parsed.job)

    def _report(self, skipped: Sequence[Skipped]) -> None:
        for item in skipped[:_MAX_SKIPPED_SHOWN]:
            complain(self.command, f"skipped: {shown(str(item.path))} ({item.reason})")
        if len(skipped) > _MAX_SKIPPED_SHOWN:
            complain(self.command, f"skipped: {len(skipped) - _MAX_SKIPPED_SHOWN} more")


@dataclass(frozen=True, slots=True)
class Batch:
    """Processes many recordings, a few at a time. The failure of one does not stop the others.

    `command`: its name stands before each message. `quiet`: only failures are reported.
    """

    command: str
    backend: Backend
    sink: Sink
    bars: ProgressBars
    request: Request
    quiet: bool = False
    _job_ids: dict[Source, str] = field(default_factory=dict)

    async def run(self, sources: Sequence[Source], jobs: int) -> Exit:
        """Process all sources, `jobs` at a time. Raises `NoServer` and `UsageError`, which end the batch."""
        remaining = iter(sources)
        try:
            # All tasks draw from one iterator; on one event loop that needs no lock.
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._process_next(remaining)) for _ in range(min(jobs, len(sources)))]
        except ExceptionGroup as failed:
            cause = failed.exceptions[0]
            if isinstance(cause, NoServer):  # finished results that wait for their turn are written
                with self.bars.paused():
                    self.sink.close()
            raise cause from None
        return Exit.FAILED if any(task.result() for task in tasks) else Exit.DONE

    async def _process_next(self, remaining: Iterator[Source]) -> int:
        """Process sources until none remains; returns the number of failures."""
        failed = 0
        for source in remaining:
            try:
                result = await self._process(source)
                await self._deliver(source, result)
                for note in () if self.quiet else result.notes:
                    self._report(source, note)
            except Failure as failure:
                failed += 1
                with self.bars.paused():
                    self.sink.drop(source)
                self._report(source, f"{failure.code}: {failure.message}")
            except (asyncio.CancelledError, OSError):  # OSError: standard output is closed or its disk is full
                if source in self._job_ids:
                    self._report(source, f"goes on as a job: asr-server job {self._job_ids[source]} --wait")
                raise
        return failed

    async def _process(self, source: Source) -> BackendResult:
        self.sink.check(source)
        with source.open() as recording, self.bars.bar(shown(source.below.name)) as bar:
            result: BackendResult | None = None
            async with aclosing(self.backend.process(recording, self.request)) as events:
                # Read to the end: the server counts a client that leaves early as cancelled.
                async for event in events:
                    if isinstance(event, BackendResult):
                        result = event
                    else:
                        self._show(source, event, bar)
        if result is None:
            raise Failure("no_answer", "The transcription ended without a result.")
        return result

    def _show(self, source: Source, event: JobAccepted | Duration | Progress | TextDelta, bar: ProgressBar) -> None:
        match event:
            case JobAccepted():
                self._job_ids[source] = event.job
            case Duration():
                bar.set_duration(event.seconds)
            case Progress():
                bar.set_done(event.seconds)
            case TextDelta():
                self.sink.delta(source, event.text)

    async def _deliver(self, source: Source, result: BackendResult) -> None:
        """Write the result. Its job is removed only after that."""
        job = self._job_ids.get(source)
        content = result.content
        try:
            with self.bars.paused():
                self.sink.deliver(source, f"{content}\n" if content and not content.endswith("\n") else content)
        except Failure as failure:
            kept = f" The server keeps the result: asr-server job {job} --result" if job else ""
            raise Failure(failure.code, f"{failure.message}{kept}") from failure
        if job:
            await self.backend.forget(job)
            del self._job_ids[source]

    def _report(self, source: Source, line: str) -> None:
        with self.bars.paused():
            complain(self.command, f"{source.name}: {line}")
