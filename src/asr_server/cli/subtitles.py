"""`asr-server subtitles`: makes subtitle files of recordings, translated on request."""

from __future__ import annotations

import argparse

from asr_server.cli import arguments, batch, formats, requests
from asr_server.cli.failure import Exit, UsageError
from asr_server.cli.formats import CUE_FORMATS

EXAMPLES = (
    "asr-server subtitles talk.mp4",
    "asr-server subtitles talk.mp4 --max-line-chars 32 -o web/talk.vtt",
    "asr-server subtitles talk.mp4 --to de --bilingual",
    "asr-server subtitles interview.mp4 --speakers --known-speaker Ann=ann.wav",
    "asr-server subtitles -r recordings --job",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES)
    arguments.add_recordings(parser)
    options = parser.add_argument_group("subtitles")
    arguments.add_formats(options, CUE_FORMATS)
    arguments.add_recognition(options)
    arguments.add_speakers(options)
    arguments.add_layout(options)
    arguments.add_target(options, required=False)
    arguments.add_outputs(parser.add_argument_group("output"), beside=True)
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> Exit:
    """Process the recordings."""
    wanted = formats.chosen(parsed, CUE_FORMATS)
    if not parsed.to and (parsed.bilingual or parsed.term):
        raise UsageError("--bilingual and --term are for translations; say --to LANGUAGE.")
    return batch.run("subtitles", parsed, requests.cue_request(parsed, wanted), wanted)
