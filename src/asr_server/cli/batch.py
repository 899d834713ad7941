"""Many recordings through one hearer, a few at a time; what fails fails alone. Knows no format and no protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from asr_server.cli.bars import Bar, Bars
from asr_server.cli.failure import Exit, Failure, NoServer, shown
from asr_server.cli.hearer import Answer, Hearer, Length, Reached, Wish, Words
from asr_server.cli.outlets import Outlet
from asr_server.cli.sources import Source


@dataclass(frozen=True, slots=True)
class Batch:
    """What to do with every recording: how to hear it, where its text goes, what is shown meanwhile."""

    hearer: Hearer
    outlet: Outlet
    bars: Bars
    wish: Wish

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
                content = await self._heard(source)
                with self.bars.aside():
                    self.outlet.deliver(source, content)
            except Failure as failure:
                failed += 1
                with self.bars.aside():
                    self.outlet.drop(source)
                    complain(f"{source.name}: {failure.code}: {failure.message}")
        return failed

    async def _heard(self, source: Source) -> str:
        self.outlet.check(source)
        with source.open() as recording, self.bars.bar(shown(source.below.name)) as bar:
            async with aclosing(self.hearer.hear(recording, self.wish)) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        return event.content if event.content.endswith("\n") else f"{event.content}\n"
                    self._show(source, event, bar)
        raise Failure("no_answer", "The transcription ended without a result.")

    def _show(self, source: Source, event: Length | Reached | Words, bar: Bar) -> None:
        match event:
            case Length():
                bar.length(event.seconds)
            case Reached():
                bar.reached(event.seconds)
            case Words():
                self.outlet.words(source, event.text)


def complain(line: str) -> None:
    """One line on stderr, named after the command."""
    print(f"asr-server transcribe: {line}", file=sys.stderr, flush=True)
