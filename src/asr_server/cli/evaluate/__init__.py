"""`asr-server evaluate`: count word and character errors of recordings whose text is known, and compare two runs.

Recordings are transcribed in the same way as by `transcribe`. A folder next to the results keeps the answers until all
of them have arrived, so that the same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from asr_server.cli import arguments, recording_files, requests
from asr_server.cli.batch import RecordingBatch, report_skipped
from asr_server.cli.evaluate import references
from asr_server.cli.evaluate.references import AnswerFiles, Reference
from asr_server.cli.failure import CommandError, Exit, UsageError, shown
from asr_server.cli.formats import Format
from asr_server.recordings.requests import ResponseFormat, TranscriptionRequest

COMMAND = "evaluate"
EXAMPLES = (
    "asr-server evaluate recordings                       talk.wav with talk.txt next to it",
    "asr-server evaluate cv/test.tsv --html errors.html   rows of path, text, language and speaker",
    "asr-server evaluate LibriSpeech/test-clean --folders speaker -l en",
    "asr-server evaluate recordings --hotword Kubernetes --json new.json --compare evaluation.json",
)
_CODES = f"1 also where a recording has failed\n{arguments.EXIT_CODES}"
_FOLDERS = ("language", "speaker", "language/speaker", "speaker/language")
_RESULTS = "evaluation.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, _CODES)
    parser.add_argument(
        "files",
        nargs=1,
        metavar="DIR|MANIFEST",
        help="a folder of recordings with their texts (talk.wav and talk.txt), or a .csv, .tsv, .json or .jsonl file",
    )
    parser.add_argument(
        "--folders",
        choices=_FOLDERS,
        default="",
        metavar="NAMES",
        help=f"what the folders within DIR stand for, from the top: {', '.join(_FOLDERS)}",
    )
    arguments.add_recognition(parser.add_argument_group("transcription"))
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--no-normalise", action="store_true", help="case, punctuation and spelling count as errors")
    measure.add_argument(
        "--compare", type=Path, metavar="FILE", help="the results (--json) of another server, model or setting"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", type=Path, metavar="FILE", default=Path(_RESULTS), help=f"results (default {_RESULTS})"
    )
    output.add_argument("--html", type=Path, metavar="FILE", help="a page that plays the place of each error")
    output.add_argument(
        "--worst", type=arguments.count, default=10, metavar="N", help="worst recordings to list (default 10)"
    )
    output.add_argument("--force", action="store_true", help="replace files that exist, and start anew")
    output.add_argument("--quiet", action="store_true", help="no progress; on stderr failures only")
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run, recursive=True)


def run(parsed: argparse.Namespace) -> int:
    """Evaluate the recordings and return an `Exit`."""
    _check(parsed)
    try:
        from asr_server.cli.evaluate import results
    except ImportError as error:
        raise CommandError(f"the package {error.name} is not installed: pip install '.[evaluate]'") from None
    other = results.previous(parsed.compare) if parsed.compare else None
    found = _references(parsed)
    if not found:
        raise CommandError("there is no recording with a text")
    kept: Path = parsed.json.with_name(f"{parsed.json.name}.part")
    if parsed.force:
        shutil.rmtree(kept, ignore_errors=True)
    files = _transcribed(parsed, kept, found)
    answers = files.read()
    if answers:
        measured = [(one, answers[one.name]) for one in found if one.name in answers]
        content = results.results(files.system, measured, files.failed, normalise=not parsed.no_normalise, other=other)
        written = {parsed.json: results.as_json(content)}
        if parsed.html:
            written[parsed.html] = results.page(content, parsed.html.parent)
        # If a file cannot be written, the answers stay, so that the next run need not ask for them again.
        for target, text in written.items():
            with recording_files.new_file(target, replace=parsed.force) as file:
                file.write(text)
        for line in results.report(content, parsed.worst):
            print(line)
    shutil.rmtree(kept, ignore_errors=True)
    return Exit.FAILED if files.failed else Exit.DONE


def _check(parsed: argparse.Namespace) -> None:
    """Raise `UsageError` if a result file cannot be written."""
    if parsed.html and os.path.abspath(parsed.html) == os.path.abspath(parsed.json):
        raise UsageError("--html and --json are the same file.")
    for option, file in (("--json", parsed.json), ("--html", parsed.html)):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"{option} {shown(str(file))}: name a file in a directory that exists.")
        if file is not None and file.exists() and not parsed.force:
            raise UsageError(f"{shown(str(file))} exists; --force replaces it, and {option} FILE names another.")


def _references(parsed: argparse.Namespace) -> list[Reference]:
    """Return all recordings with their texts, and report the skipped ones. Raises `UsageError`."""
    place = Path(parsed.files[0])
    if place.is_dir():
        sources, unheard = recording_files.find(parsed.files, recursive=True, command=COMMAND)
        found, skipped = references.in_folder(sources, list(filter(None, parsed.folders.split("/"))))
        skipped += unheard
    elif parsed.folders:
        raise UsageError("--folders is for a folder; a manifest has columns for language and speaker.")
    elif place.is_file() and place.suffix.lower() in references.MANIFESTS:
        found, skipped = references.in_manifest(place)
    else:
        kinds = ", ".join(references.MANIFESTS)
        raise UsageError(f"{shown(parsed.files[0])} is neither a folder nor a manifest that ends in one of {kinds}.")
    if not parsed.quiet:
        report_skipped(COMMAND, skipped)
    return [replace(one, language=parsed.language) if parsed.language else one for one in found]


def _transcribed(parsed: argparse.Namespace, folder: Path, found: Sequence[Reference]) -> AnswerFiles:
    """Request the answers that the folder does not have yet, and return all answers."""
    model = parsed.model
    if parsed.local and not model:
        from asr_server.cli.backends import local_settings

        model = local_settings(None).model_id
    names = ("language", "prompt", "hotword", "vad", "strict")
    stated = {name.replace("hotword", "hotwords"): getattr(parsed, name) for name in names}
    system = {"server": "local" if parsed.local else arguments.server(parsed), "model": model, **stated}
    answers = AnswerFiles(folder, system, [one.source for one in found])
    options = requests.stated(TranscriptionRequest, parsed) | {"timestamp_granularities": ("word",)}
    request = TranscriptionRequest(**options, response_format=ResponseFormat.VERBOSE_JSON)
    RecordingBatch(COMMAND, parsed, request, [Format.VERBOSE_JSON], answers).process(list(answers.files))
    return answers
