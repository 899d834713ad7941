"""`asr-server align`: finds when each word of a text is said, with a server or a worker of this command."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from asr_server.cli import arguments, formats, recording_files, requests
from asr_server.cli.batch import notes
from asr_server.cli.failure import UsageError, complain, shown
from asr_server.cli.given_text import STANDARD, given_text
from asr_server.cli.progress import ProgressBars
from asr_server.cli.recording_files import RecordingSource
from asr_server.features.alignments.requests import AlignmentFormat, AlignmentRequest
from asr_server.recordings.requests import Result

EXAMPLES = (
    "asr-server align chapter.mp3 chapter.txt -o chapter.json",
    "asr-server align song.mp3 lyrics.txt -o song.srt",
    "asr-server align interview.wav interview.txt -o interview.TextGrid --local",
    'asr-server align hello.wav "Good morning to all of you." -f tsv',
)
_CODES = "exit codes: 0 done; 1 it failed; 2 wrong arguments or settings; 3 no server; 130 interrupted"
_ENDINGS = {f".{one}": one for one in AlignmentFormat}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, _CODES)
    parser.add_argument("recording", metavar="RECORDING", help="in any container, or - for standard input")
    parser.add_argument(
        "text", metavar="TEXT", help="the text, or the name of a file that holds it, or - for standard input"
    )
    arguments.add_language(parser)
    arguments.add_file_output(
        parser,
        AlignmentFormat,
        "a file such as talk.srt (default: standard output)",
        "json: words and lines with scores; srt, vtt: subtitles; tsv: a line for each word; textgrid: for Praat "
        "(default: by the name of --output, or json)",
    )
    where = parser.add_argument_group("server")
    arguments.add_worker(where)
    arguments.add_model(where)
    parser.set_defaults(run=_run, job=False)


def _run(parsed: argparse.Namespace) -> None:
    if parsed.recording == parsed.text == STANDARD:
        raise UsageError("the recording and the text cannot both be standard input.")
    target = None if parsed.output in (None, STANDARD) else Path(parsed.output)
    request = AlignmentRequest(
        text=given_text(parsed.text),
        language=parsed.language or "",
        model=requests.model(parsed),
        answer=formats.of_file(parsed.format, target, _ENDINGS, AlignmentFormat.JSON),
    )
    (source,), _ = recording_files.find([parsed.recording], recursive=False, command="align")
    # Open the file first: if it cannot be written, the command fails before the recording is processed.
    if target is None:
        result = asyncio.run(_answer(parsed, source, request))
        sys.stdout.buffer.write(result.content.removesuffix(b"\n") + b"\n")
        sys.stdout.buffer.flush()
    else:
        with recording_files.new_file(target, replace=parsed.force) as file:
            result = asyncio.run(_answer(parsed, source, request))
            file.write(result.content)
    for note in () if parsed.quiet else notes(request, result):
        complain("align", note)


async def _answer(parsed: argparse.Namespace, source: RecordingSource, request: AlignmentRequest) -> Result:
    from asr_server.cli.backends import backend_of

    bars = ProgressBars(wanted=not parsed.quiet)
    async with backend_of(parsed) as backend:
        with source.open() as recording, bars, bars.bar(shown(source.below.name)):
            return await backend.answer_to(recording, request)
