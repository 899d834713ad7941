"""`asr-server translate`: recordings to text or subtitles in another language."""

from __future__ import annotations

import argparse

from asr_server.cli import arguments
from asr_server.cli.batch import Run
from asr_server.service.requests import ResponseFormat

EXAMPLES = (
    "asr-server translate talk.mp3 --to de",
    "asr-server translate talk.mp4 --to French --format srt --bilingual --beside",
    "asr-server translate -r recordings --to pt-BR --term kitchen=cozinha --output texts",
)
NOTE = "The server needs a translation endpoint (docs/translation.md); with --local the environment's settings name it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    arguments.explain(parser, EXAMPLES, f"{NOTE}\n\n{arguments.EXIT_CODES}")
    arguments.add_recordings(parser)
    how = parser.add_argument_group("translation")
    arguments.add_target(how, required=True)
    how.add_argument("--format", choices=[f.value for f in ResponseFormat], default="text", help="default: text")
    arguments.add_recognition(how)
    arguments.add_layout(how)
    arguments.add_outputs(parser.add_argument_group("output"), beside=False)
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`."""
    return Run("translate", parsed, arguments.cue_request(parsed)).run()
