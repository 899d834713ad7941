"""`asr-server transcribe`: transcribes files, directories or standard input, with a server or its own worker."""

from __future__ import annotations

import argparse

from asr_server.cli import arguments, batch, formats, requests
from asr_server.cli.failure import UsageError
from asr_server.cli.formats import Format

EXAMPLES = (
    "asr-server transcribe talk.mp3",
    "asr-server transcribe talk.mp4 -o talk.srt",
    "asr-server transcribe meeting.wav --speakers --num-speakers 3",
    "asr-server transcribe -r recordings --beside -f txt,srt",
    "ffmpeg -i talk.mkv -f wav - | asr-server transcribe - --stream",
    "asr-server transcribe talk.mp3 --local --model demo",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES)
    arguments.add_recordings(parser)
    how = parser.add_argument_group("transcription")
    arguments.add_formats(how)
    arguments.add_recognition(how)
    arguments.add_speakers(how)
    how.add_argument("--stream", action="store_true", help="print the text while it is decoded, one file at a time")
    arguments.add_outputs(parser.add_argument_group("output"), beside=False)
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Transcribe the recordings and return an `Exit`."""
    wanted = formats.chosen(parsed)
    for contradicts, line in (
        (wanted != [Format.TEXT], "is for --format text"),
        (parsed.output or parsed.beside, "writes to standard output; leave out --output and --beside"),
        (parsed.speakers, "prints text before its speaker is known; leave out one of them"),
        ((parsed.jobs or 1) > 1, "processes one recording at a time; leave out --jobs"),
        (parsed.job, "prints text while it is decoded, and --job the result of a job; leave out one of them"),
    ):
        if parsed.stream and contradicts:
            raise UsageError(f"--stream {line}.")
    return batch.run("transcribe", parsed, requests.transcription_request(parsed, wanted), wanted)
