"""`asr-server job`: the state of a job, its result, its removal."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING

from asr_server.cli import arguments
from asr_server.cli.failure import Exit, Failure, complain, no_server, shown

if TYPE_CHECKING:
    from asr_server.client.jobs import AsyncJobClient, JobStatus

EXAMPLES = (
    "asr-server subtitles long.mp4 --job          Ctrl-C leaves the job running and prints its ID",
    "asr-server job ID                            the state of the job",
    "asr-server job ID --wait > long.srt          progress until it is done, then the result",
    "asr-server job ID --result > long.srt",
    "asr-server job ID --cancel                   ends the job, and keeps its state",
    "asr-server job ID --delete",
)
_CODES = "exit codes: 0 done; 1 the job failed, or there is no such job or result; 2 wrong arguments; 3 no server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    parser.add_argument("id", metavar="ID", help="the id from the server: job_...")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--wait", action="store_true", help="wait for the end, then print the result, which stays on the server"
    )
    what.add_argument("--result", action="store_true", help="print the result, which stays on the server")
    what.add_argument("--cancel", action="store_true", help="end the job without a result, and print its state")
    what.add_argument("--delete", action="store_true", help="stop the job, remove its recording and its result")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    try:
        return asyncio.run(_execute(parsed))
    except Failure as failure:
        complain("job", f"{shown(parsed.id)}: {failure.code}: {failure.message}")
        return Exit.FAILED
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; the job {shown(parsed.id)} goes on") from None


async def _execute(parsed: argparse.Namespace) -> Exit:
    from asr_server.client.connection import FileError, ServerUnreachable
    from asr_server.client.jobs import AsyncJobClient

    server = arguments.server(parsed)
    async with AsyncJobClient(server, key=arguments.key(parsed)) as jobs:
        try:
            if parsed.wait:
                await _wait(jobs, parsed)
            if parsed.wait or parsed.result:
                async with aclosing(jobs.stream_result(parsed.id)) as pieces:
                    async for piece in pieces:
                        sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            elif parsed.delete:
                await jobs.delete(parsed.id)
            elif parsed.cancel:
                return _print(await jobs.cancel(parsed.id))
            else:
                return _print(await jobs.status(parsed.id))
        except ServerUnreachable as error:
            raise no_server(server) from error
        except FileError as error:
            raise Failure(error.code, error.message) from error
    return Exit.DONE


async def _wait(jobs: AsyncJobClient, parsed: argparse.Namespace) -> None:
    from asr_server.cli.backends import watch_job
    from asr_server.cli.progress import ProgressBars

    await jobs.status(parsed.id)  # `watch_job` would wait for a server that does not answer
    with ProgressBars(wanted=not parsed.quiet) as bars, bars.bar(shown(parsed.id)) as bar:
        async with aclosing(watch_job(jobs, parsed.id)) as changes:
            async for status in changes:
                if status.duration_s:
                    bar.set_duration(status.duration_s)
                bar.set_done(status.done_s)
                if status.error:
                    raise Failure(status.error.code, status.error.message)


def _print(status: JobStatus) -> Exit:
    if status.error:
        raise Failure(status.error.code, status.error.message)
    whole = f" of {status.duration_s:.1f} s" if status.duration_s else ""
    share = f" ({status.done_s / status.duration_s:.0%})" if status.duration_s else ""
    print(f"{status.state}: {status.done_s:.1f} s{whole} done{share}")
    return Exit.DONE
