"""`asr-server transcribe`: files, directories or standard input to text, by a server or in this process."""

from __future__ import annotations

import argparse

from asr_server.cli import arguments
from asr_server.cli.backend import RequestOptions
from asr_server.cli.failure import UsageError
from asr_server.cli.work import Run
from asr_server.service.requests import ResponseFormat

EXAMPLES = (
    "asr-server transcribe talk.mp3",
    "asr-server transcribe talk.mp4 --format srt --output talk.srt",
    "asr-server transcribe -r recordings --beside --jobs 8",
    "ffmpeg -i talk.mkv -f wav - | asr-server transcribe - --stream",
    "asr-server transcribe talk.mp3 --local --model demo",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    arguments.explain(parser, EXAMPLES)
    arguments.add_recordings(parser)
    how = parser.add_argument_group("what is transcribed how")
    how.add_argument("--format", choices=[f.value for f in ResponseFormat], default="text", help="default: text")
    arguments.add_hearing(how)
    how.add_argument("--stream", action="store_true", help="print the words as they are decoded, one file at a time")
    arguments.add_outputs(parser.add_argument_group("where it goes"), beside=False)
    arguments.add_workers(parser.add_argument_group("who transcribes"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`."""
    if parsed.stream:
        _check_stream(parsed)
    wish = RequestOptions(
        response_format=ResponseFormat(parsed.format),
        language=parsed.language,
        prompt=parsed.prompt,
        hotwords=tuple(parsed.hotword),
        model=parsed.model,
        stream=parsed.stream,
        as_job=parsed.job,
    )
    return Run("transcribe", parsed, wish).run()


def _check_stream(parsed: argparse.Namespace) -> None:
    if parsed.format != ResponseFormat.TEXT.value:
        raise UsageError("--stream is for --format text.")
    if parsed.output or parsed.beside:
        raise UsageError("--stream writes to standard output; leave out --output and --beside.")
    if (parsed.jobs or 1) > 1:
        raise UsageError("--stream takes one recording at a time; leave out --jobs.")
    if parsed.job:
        raise UsageError(
            "--stream prints words while they are decoded, and a job is left alone; leave out one of them."
        )
