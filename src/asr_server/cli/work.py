"""What transcribe, subtitles and translate have in common: from parsed arguments to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from asr_server.cli import arguments, sinks, sources
from asr_server.cli.backend import MODES, Backend, Layout, RequestOptions, Target
from asr_server.cli.batch import Batch
from asr_server.cli.failure import Exit, UsageError, complain, shown
from asr_server.cli.progress import ProgressBars
from asr_server.cli.sinks import Sink
from asr_server.cli.sources import LeftOut, Source
from asr_server.service.requests import ResponseFormat

# More would only make a message that nobody reads.
_MOST_NAMED = 20
STANDARD_OUTPUT = Path("-")


def wish(parsed: argparse.Namespace) -> RequestOptions:
    """The wish for subtitles, or with `--to` for a translation."""
    target = Target(parsed.to, parsed.bilingual, dict(parsed.term)) if parsed.to else None
    return RequestOptions(
        response_format=ResponseFormat(parsed.format),
        language=parsed.language,
        prompt=parsed.prompt,
        hotwords=tuple(parsed.hotword),
        model=parsed.model,
        layout=Layout(parsed.max_line_chars, parsed.max_lines, MODES[parsed.mode]),
        target=target,
        as_job=parsed.job,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """The common arguments of a command, and what it wishes for."""

    command: str
    parsed: argparse.Namespace
    wish: RequestOptions

    def run(self) -> int:
        """Returns an `Exit`. Raises `UsageError`, `NoServer` and what wrong settings raise."""
        found = self.find()
        return self.work(found, self.outlet(found)) if found else Exit.FAILED

    def find(self) -> list[Source]:
        """All recordings that are meant; says so where there are none, and what was left out."""
        _check(self.parsed)
        found, left_out = sources.find(self.parsed.files, recursive=self.parsed.recursive)
        if not self.parsed.quiet:
            self._tell(left_out)
        if not found:
            complain(self.command, "there is no recording in what was named")
        return found

    def outlet(self, found: Sequence[Source]) -> Sink:
        """Where it goes. Raises `UsageError`."""
        parsed, target = self.parsed, self.wish.target
        place: Path | None = parsed.output
        if place == STANDARD_OUTPUT or (place is None and not parsed.beside):
            return sinks.StdoutSink(found)
        ending = sinks.suffix(self.wish.response_format, target.tag if target else "")
        if place is None:
            return sinks.FileSink(sinks.targets(found, None, ending), force=parsed.force)
        if len(found) == 1 and not os.path.isdir(place) and not _contains_directory(parsed.files):
            return sinks.FileSink(sinks.single(found[0], place), force=parsed.force)
        if os.path.exists(place) and not os.path.isdir(place):
            raise UsageError(f"--output {shown(str(place))} is a file, and there are several recordings.")
        return sinks.FileSink(sinks.targets(found, place, ending), force=parsed.force)

    def work(self, found: Sequence[Source], outlet: Sink) -> Exit:
        """Work all of them off."""
        try:
            return asyncio.run(self._work(found, outlet))
        except KeyboardInterrupt:
            if self.parsed.local:
                from asr_server.cli.local_backend import end_now

                end_now()
            raise

    async def _work(self, found: Sequence[Source], outlet: Sink) -> Exit:
        parsed, stream = self.parsed, self.wish.stream
        jobs = 1 if stream else parsed.jobs or arguments.DEFAULT_JOBS
        # Words that stream to a terminal are themselves what moves.
        bars = ProgressBars(wanted=not (parsed.quiet or (stream and sys.stdout.isatty())))
        async with self._hearer() as hearer:
            with bars:
                return await Batch(self.command, hearer, outlet, bars, self.wish, parsed.quiet).run(found, jobs)

    def _hearer(self) -> Backend:
        if self.parsed.local:
            from asr_server.cli.local_backend import LocalBackend, settings_for_one

            return LocalBackend(settings_for_one(self.parsed.model))
        from asr_server.cli.remote_backend import RemoteBackend

        return RemoteBackend(self.parsed.server, arguments.key(self.parsed))

    def _tell(self, left_out: Sequence[LeftOut]) -> None:
        for item in left_out[:_MOST_NAMED]:
            complain(self.command, f"left out: {shown(str(item.path))} ({item.reason})")
        if len(left_out) > _MOST_NAMED:
            complain(self.command, f"left out: {len(left_out) - _MOST_NAMED} more")


def _check(parsed: argparse.Namespace) -> None:
    if parsed.job and parsed.local:
        raise UsageError("--job is for a server; leave out --local.")


def _contains_directory(named: Sequence[str]) -> bool:
    """How many recordings a directory holds must not decide what `--output` means."""
    return any(os.path.isdir(argument) for argument in named)
