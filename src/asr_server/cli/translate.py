"""`asr-server translate`: turns recordings into text or subtitles in another language."""

from __future__ import annotations

import argparse

from asr_server.cli import arguments, batch, formats, requests
from asr_server.cli.failure import UsageError
from asr_server.cli.formats import CUE_FORMATS, FORMATS, Format

EXAMPLES = (
    "asr-server translate talk.mp3 --to de",
    "asr-server translate talk.mp4 --to French -f srt,vtt --bilingual --beside",
    "asr-server translate -r recordings --to pt-BR --term kitchen=cozinha --output texts",
)
_FORMATS = tuple(one for one in FORMATS if one is not Format.DIARIZED_JSON)
NOTE = (
    "The server needs a translation endpoint (docs/use/translation.md); "
    "with --local the environment's settings name it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, f"{NOTE}\n\n{arguments.EXIT_CODES}")
    arguments.add_recordings(parser)
    how = parser.add_argument_group("translation")
    arguments.add_target(how, required=True)
    arguments.add_formats(how, _FORMATS)
    arguments.add_recognition(how)
    arguments.add_speakers(how)
    arguments.add_layout(how)
    arguments.add_outputs(parser.add_argument_group("output"), beside=False)
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Translate the recordings and return an `Exit`."""
    wanted = formats.chosen(parsed, _FORMATS)
    if len(wanted) > 1 and not set(wanted) <= set(CUE_FORMATS):
        # Cues are translated one by one, and texts as sentences.
        raise UsageError(f"several formats of a translation must be of {', '.join(CUE_FORMATS)}.")
    return batch.run("translate", parsed, requests.cue_request(parsed, wanted), wanted)
