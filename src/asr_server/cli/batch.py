"""Many recordings through one hearer, a few at a time; what fails fails alone. Knows no format and no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from asr_server.cli.backend import Backend, BackendResult, Duration, JobAccepted, Progress, RequestOptions, WordMode
from asr_server.cli.failure import Exit, Failure, NoServer, complain, shown
from asr_server.cli.progress import ProgressBar, ProgressBars
from asr_server.cli.sinks import Sink
from asr_server.cli.sources import Source


@dataclass(frozen=True, slots=True)
class Batch:
    """What to do with every recording: how to hear it, where its text goes, what is shown meanwhile.

    `command` names itself in what it tells; `quiet`: failures alone are told.
    """

    command: str
    hearer: Backend
    outlet: Sink
    bars: ProgressBars
    wish: RequestOptions
    quiet: bool = False
    _jobs: dict[Source, str] = field(default_factory=dict)

    async def run(self, sources: Sequence[Source], jobs: int) -> Exit:
        """Work all sources off, `jobs` at a time. Raises `NoServer` and `UsageError`: they end the whole."""
        remaining = iter(sources)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._work(remaining)) for _ in range(min(jobs, len(sources)))]
        except ExceptionGroup as failed:
            cause = failed.exceptions[0]
            if isinstance(cause, NoServer):  # what is done already is not lost
                with self.bars.aside():
                    self.outlet.close()
            raise cause from None
        return Exit.FAILED if any(task.result() for task in tasks) else Exit.DONE

    async def _work(self, remaining: Iterator[Source]) -> int:
        """Take the next one until there is none; returns how many failed."""
        failed = 0
        for source in remaining:
            try:
                answer = await self._heard(source)
                await self._deliver(source, answer)
                for remark in () if self.quiet else answer.remarks:
                    self._tell(source, remark)
            except Failure as failure:
                failed += 1
                with self.bars.aside():
                    self.outlet.drop(source)
                self._tell(source, f"{failure.code}: {failure.message}")
            except (asyncio.CancelledError, OSError):  # of these, what ends the whole: a pipe or a disk takes no more
                if source in self._jobs:
                    self._tell(source, f"goes on as a job: asr-server job {self._jobs[source]} --wait")
                raise
        return failed

    async def _deliver(self, source: Source, answer: BackendResult) -> None:
        """A job is removed only when its result is where it should be."""
        job = self._jobs.get(source)
        try:
            with self.bars.aside():
                self.outlet.deliver(source, _ended(answer.content))
        except Failure as failure:
            kept = f" The server keeps the result: asr-server job {job} --result" if job else ""
            raise Failure(failure.code, f"{failure.message}{kept}") from failure
        if job:
            await self.hearer.forget(job)
            del self._jobs[source]

    async def _heard(self, source: Source) -> BackendResult:
        self.outlet.check(source)
        with source.open() as recording, self.bars.bar(shown(source.below.name)) as bar:
            answer: BackendResult | None = None
            async with aclosing(self.hearer.hear(recording, self.wish)) as events:
                # To its end: a server would take one that leaves before for a caller who gave up.
                async for event in events:
                    if isinstance(event, BackendResult):
                        answer = event
                    else:
                        self._show(source, event, bar)
        if answer is None:
            raise Failure("no_answer", "The transcription ended without a result.")
        return answer

    def _show(self, source: Source, event: JobAccepted | Duration | Progress | WordMode, bar: ProgressBar) -> None:
        match event:
            case JobAccepted():
                self._jobs[source] = event.job
            case Duration():
                bar.length(event.seconds)
            case Progress():
                bar.reached(event.seconds)
            case WordMode():
                self.outlet.words(source, event.text)

    def _tell(self, source: Source, line: str) -> None:
        with self.bars.aside():
            complain(self.command, f"{source.name}: {line}")


def _ended(content: str) -> str:
    return content if not content or content.endswith("\n") else f"{content}\n"
