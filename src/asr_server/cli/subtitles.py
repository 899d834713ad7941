"""`asr-server subtitles`: recordings to subtitle files beside them, translated if wished; checks such files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from asr_server.cli import arguments
from asr_server.cli.failure import Exit, Failure, UsageError, complain, shown
from asr_server.cli.work import STANDARD_OUTPUT, Run, wish
from asr_server.subtitle.cue_config import CueConfig

EXAMPLES = (
    "asr-server subtitles talk.mp4",
    "asr-server subtitles talk.mp4 --format vtt --max-line-chars 32 --output web/talk.vtt",
    "asr-server subtitles talk.mp4 --to de --bilingual",
    "asr-server subtitles -r recordings --job --burn-check",
    "asr-server subtitles talk.srt --burn-check",
)
_CODES = f"--burn-check: 1 also where a rule is broken\n{arguments.EXIT_CODES}"
_CHECK_HELP = "list what breaks the rules of docs/subtitles.md; a .srt or .vtt that is named is checked as it is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    arguments.explain(parser, EXAMPLES, _CODES)
    arguments.add_recordings(parser, "; with --burn-check also .srt and .vtt")
    how = parser.add_argument_group("what is made how")
    how.add_argument("--format", choices=["srt", "vtt"], default="srt", help="default: srt")
    arguments.add_hearing(how)
    arguments.add_layout(how)
    arguments.add_target(how, required=False)
    how.add_argument("--burn-check", action="store_true", help=_CHECK_HELP)
    arguments.add_outputs(parser.add_argument_group("where it goes"), beside=True)
    arguments.add_workers(parser.add_argument_group("who works"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`; `FAILED` also where a check finds something."""
    from asr_server.cli import validate

    _check(parsed)
    finished = [Path(name) for name in parsed.files if validate.is_subtitles(Path(name))]
    recordings = [name for name in parsed.files if Path(name) not in finished]
    if finished and not parsed.burn_check:
        raise UsageError(f"{shown(str(finished[0]))} is a subtitle file already; --burn-check checks it.")
    parsed = argparse.Namespace(**{**vars(parsed), "files": recordings})
    ends = [_check_finished(finished, _rules(parsed))] if finished else []
    if recordings:
        ends.append(_make(Run("subtitles", parsed, wish(parsed))))
    return max(ends)


def _make(order: Run) -> Exit:
    from asr_server.cli.validate import Reviewed

    parsed = order.parsed
    found = order.find()
    if not found:
        return Exit.FAILED
    outlet = order.outlet(found)
    if not parsed.burn_check:
        return order.work(found, outlet)
    reviewed = Reviewed(outlet, order.wish.response_format, _rules(parsed))
    end = order.work(found, reviewed)
    _print(reviewed.faults)
    return Exit.FAILED if reviewed.faults else end


def _check_finished(files: Sequence[Path], rules: CueConfig) -> Exit:
    from asr_server.cli import validate

    end = Exit.DONE
    for file in files:
        try:
            faults = validate.of_file(file, rules)
        except Failure as failure:
            complain("subtitles", f"{shown(str(file))}: {failure.code}: {failure.message}")
            end = Exit.FAILED
            continue
        _print(faults)
        end = Exit.FAILED if faults else end
    return end


def _rules(parsed: argparse.Namespace) -> CueConfig:
    """The rules of docs/subtitles.md, a server's unless it is set up otherwise; with `--local` the settings' own."""
    layout = CueConfig(max_line_columns=parsed.max_line_chars, max_lines=parsed.max_lines)
    if not parsed.local:
        return layout
    from asr_server.cli.local_backend import settings_for_one
    from asr_server.service.output import subtitles
    from asr_server.service.requests import OutputOptions

    output = OutputOptions(max_line_chars=parsed.max_line_chars, max_lines=parsed.max_lines)
    return subtitles.cue_config(settings_for_one(parsed.model), output)


def _check(parsed: argparse.Namespace) -> None:
    if not parsed.to and (parsed.bilingual or parsed.term):
        raise UsageError("--bilingual and --term are for translations; say --to LANGUAGE.")
    if parsed.burn_check and parsed.bilingual:
        raise UsageError("--burn-check cannot tell which lines of a bilingual file belong together; leave out one.")
    if parsed.burn_check and parsed.output == STANDARD_OUTPUT:
        raise UsageError("--burn-check writes its list to standard output; say --output FILE.")


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)
