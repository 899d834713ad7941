"""`asr-server subtitles`: recordings to subtitle files, translated on request; checks subtitle files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr_server.cli import arguments, formats, requests
from asr_server.cli.batch import STANDARD_OUTPUT, Run
from asr_server.cli.failure import Exit, Failure, UsageError, complain, shown
from asr_server.cli.formats import CUE_FORMATS, Format
from asr_server.cli.recording_files import Contents, Existing, FileSink, RecordingSource, Targets
from asr_server.recordings.requests import OutputOptions
from asr_server.subtitle import files, lint
from asr_server.subtitle.cues import Cue, CueConfig
from asr_server.subtitle.lint import LintRule

EXAMPLES = (
    "asr-server subtitles talk.mp4",
    "asr-server subtitles talk.mp4 --max-line-chars 32 -o web/talk.vtt",
    "asr-server subtitles talk.mp4 --to de --bilingual",
    "asr-server subtitles interview.mp4 --speakers --known-speaker Ann=ann.wav",
    "asr-server subtitles -r recordings --job --burn-check",
    "asr-server subtitles talk.srt --burn-check",
)
_CODES = f"--burn-check: 1 also where a rule is violated\n{arguments.EXIT_CODES}"
_CHECK_HELP = "list violations of the rules of docs/use/subtitles.md; a .srt or .vtt file is checked as it is"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    arguments.add_recordings(parser, "; with --burn-check also .srt and .vtt")
    options = parser.add_argument_group("subtitles")
    arguments.add_formats(options, CUE_FORMATS)
    arguments.add_recognition(options)
    arguments.add_speakers(options)
    arguments.add_layout(options)
    arguments.add_target(options, required=False)
    options.add_argument("--burn-check", action="store_true", help=_CHECK_HELP)
    arguments.add_outputs(parser.add_argument_group("output"), beside=True)
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`; `FAILED` also where `--burn-check` finds a violation."""
    wanted = formats.chosen(parsed, CUE_FORMATS)
    _check(parsed, wanted)
    subtitle_files = [Path(name) for name in parsed.files if is_subtitles(Path(name))]
    recordings = [name for name in parsed.files if Path(name) not in subtitle_files]
    if subtitle_files and not parsed.burn_check:
        raise UsageError(f"{shown(str(subtitle_files[0]))} is a subtitle file already; --burn-check checks it.")
    parsed = argparse.Namespace(**{**vars(parsed), "files": recordings})
    exits = [_validate(subtitle_files, _cue_config(parsed))] if subtitle_files else []
    if recordings:
        exits.append(_process(Run("subtitles", parsed, requests.cue_request(parsed, wanted), wanted)))
    return max(exits)


def _process(run: Run) -> Exit:
    if not run.parsed.burn_check:
        return run.run()
    found = run.find()
    if not found:
        return Exit.FAILED
    targets = run.targets(found)
    assert targets is not None, "--burn-check excludes standard output"
    config = _cue_config(run.parsed)
    sink = ValidatingSink(targets, config, run.existing)
    code = run.process(found, sink)
    _print(sink.violations)
    return Exit.FAILED if sink.violations else code


def _validate(files: Sequence[Path], config: CueConfig) -> Exit:
    code = Exit.DONE
    for file in files:
        try:
            violations = violations_of_file(file, config)
        except Failure as failure:
            complain("subtitles", f"{shown(str(file))}: {failure.code}: {failure.message}")
            code = Exit.FAILED
            continue
        _print(violations)
        code = Exit.FAILED if violations else code
    return code


def _cue_config(parsed: argparse.Namespace) -> CueConfig:
    """Return the default rules of docs/use/subtitles.md; with `--local` those of the settings."""
    output = OutputOptions(max_line_chars=parsed.max_line_chars, max_lines=parsed.max_lines)
    if not parsed.local:
        return CueConfig(max_line_columns=output.max_line_chars, max_lines=output.max_lines)
    from asr_server.cli.backends import local_settings
    from asr_server.recordings.render import cue_config

    return cue_config(local_settings(parsed.model), output)


def _check(parsed: argparse.Namespace, wanted: Sequence[Format]) -> None:
    if not parsed.to and (parsed.bilingual or parsed.term):
        raise UsageError("--bilingual and --term are for translations; say --to LANGUAGE.")
    if parsed.burn_check and not {Format.SRT, Format.VTT} & set(wanted):
        raise UsageError("--burn-check reads srt and vtt; say --format with one of them.")
    if parsed.burn_check and parsed.bilingual:
        raise UsageError("--burn-check cannot tell the two languages of a bilingual file apart; leave out one of them.")
    if parsed.burn_check and parsed.output == STANDARD_OUTPUT:
        raise UsageError("--burn-check writes its list to standard output; say --output FILE.")


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)


_PARSERS = {Format.SRT: files.parse_srt, Format.VTT: files.parse_vtt}
_UNITS = {
    LintRule.EMPTY: " lines",
    LintRule.LINES: " lines",
    LintRule.LINE_WIDTH: " columns",
    LintRule.READING_SPEED: " %",
}
# The figure of these rules is the number of a line, and there is no limit.
_LINE_RULES = {LintRule.LINE_START, LintRule.LINE_END}


class ValidatingSink(FileSink):
    """Writes the files and validates each. `violations`: a line for each broken rule."""

    def __init__(self, targets: Targets, config: CueConfig, existing: Existing) -> None:
        super().__init__(targets, existing)
        self._config = config
        self.violations: list[str] = []

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Written first: files with violations are kept. All of them have the same cues."""
        super().deliver(source, contents)
        one = next(one for one in contents if one in _PARSERS)
        content = contents[one]
        assert isinstance(content, str)
        self.violations += _prefixed(source.name, violations_of(_PARSERS[one](content), self._config))


def is_subtitles(path: Path) -> bool:
    """True if the path is a subtitle file by its name."""
    return _format(path) is not None and not os.path.isdir(path)


def violations_of_file(path: Path, config: CueConfig) -> list[str]:
    """Return a line for each violation in a file; unreadable times first. Raises `Failure` where the file cannot be
    read or has no cue."""
    kind = _format(path)
    assert kind is not None
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure("no_such_file", "There is no such file.") from None
    except OSError as error:
        raise Failure("cannot_read", f"{error.strerror}.") from None
    except UnicodeDecodeError:
        raise Failure("cannot_read", "It is not UTF-8.") from None
    cues, unreadable = _PARSERS[kind](content), files.unread_time_lines(content)
    if not cues and not unreadable:
        raise Failure("no_cues", "There is no cue in it.")
    lost = [f"line {number}: times that cannot be read, so no cue" for number in unreadable]
    return _prefixed(shown(str(path)), [*lost, *violations_of(cues, config)])


def violations_of(cues: list[Cue], config: CueConfig) -> list[str]:
    """Return a line for each violation: number and start of the cue, the rule, figure and limit."""
    return [
        f"cue {violation.cue} at {files.timestamp(cues[violation.cue - 1].start_ms, '.')}: {_figure(violation)}"
        for violation in lint.check(cues, config)
    ]


def _figure(violation: lint.Violation) -> str:
    if violation.rule in _LINE_RULES:
        return f"{violation.rule} in line {violation.figure}"
    unit = _UNITS.get(violation.rule, " ms")
    return f"{violation.rule} {violation.figure}{unit} (limit {violation.limit}{unit})"


def _format(path: Path) -> Format | None:
    found = path.suffix.lower().removeprefix(".")
    return next((form for form in _PARSERS if form.value == found), None)


def _prefixed(name: str, lines: Iterable[str]) -> list[str]:
    return [f"{name}: {line}" for line in lines]
