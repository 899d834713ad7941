"""`asr-server evaluate`: count word and character errors of recordings whose text is known, and compare two systems.

Recordings are transcribed as by `transcribe`. A file beside the results keeps the answers until all are there, so that
the same command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_server.cli import arguments
from asr_server.cli.backend import Backend
from asr_server.cli.batch import Run
from asr_server.cli.evaluate import references
from asr_server.cli.evaluate.references import Reference
from asr_server.cli.failure import Exit, NoServer, UsageError, complain, shown
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import whole_file
from asr_server.recordings.requests import DEFAULT_MODEL, OutputOptions, ResponseFormat, TranscriptionRequest

if TYPE_CHECKING:
    from asr_server.cli.evaluate.answers import AnswerFile
    from asr_server.cli.evaluate.results import Results

COMMAND = "evaluate"
EXAMPLES = (
    "asr-server evaluate recordings                       talk.wav with talk.txt next to it",
    "asr-server evaluate cv/test.tsv --html errors.html   rows of path, text, language and speaker",
    "asr-server evaluate LibriSpeech/test-clean --folders speaker -l en",
    "asr-server evaluate recordings --compare http://other:8100 --json both.json",
    "asr-server evaluate recordings --hotword Kubernetes --json new.json --compare evaluation.json",
)
_CODES = f"1 also where a recording has failed\n{arguments.EXIT_CODES}"
_LABELS = ("language", "speaker")
_DEFAULT_RESULTS = "evaluation.json"
_PACKAGES = "pip install '.[evaluate]'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    parser.add_argument(
        "files",
        nargs=1,
        metavar="DIR|MANIFEST",
        help="a folder of recordings with their texts (talk.wav and talk.txt), or a .csv, .tsv, .json or .jsonl file",
    )
    parser.add_argument(
        "--folders",
        type=_labels,
        default=(),
        metavar="NAMES",
        help="what the folders within DIR stand for, from the top: language, speaker, language/speaker or "
        "speaker/language",
    )
    how = parser.add_argument_group("transcription")
    arguments.add_recognition(how)
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--no-normalise", action="store_true", help="case, punctuation and spelling count as errors")
    measure.add_argument(
        "--compare", metavar="URL|FILE", help="another server, or the results of another run (its --json FILE)"
    )
    measure.add_argument(
        "--compare-model", default="", metavar="NAME", help="the model there; alone: another model here"
    )
    measure.add_argument("--compare-api-key-file", type=Path, metavar="FILE", help="file that holds the key there")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=Path(_DEFAULT_RESULTS),
        help=f"results (default {_DEFAULT_RESULTS})",
    )
    output.add_argument("--html", type=Path, metavar="FILE", help="a page that plays the place of each error")
    output.add_argument(
        "--worst", type=arguments.count, default=10, metavar="N", help="worst recordings to list (default 10)"
    )
    output.add_argument("--force", action="store_true", help="replace files that exist, and start anew")
    output.add_argument("--quiet", action="store_true", help="no progress; on stderr failures only")
    arguments.add_workers(parser.add_argument_group("server"))
    parser.set_defaults(run=run, recursive=True)


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(text.split("/"))
    if not set(labels) <= set(_LABELS) or len(set(labels)) < len(labels):
        raise argparse.ArgumentTypeError(f"{text!r} is none of language, speaker, language/speaker, speaker/language")
    return labels


def run(parsed: argparse.Namespace) -> int:
    """Returns an `Exit`."""
    _check(parsed)
    try:
        from asr_server.cli.evaluate import results
    except ImportError as error:
        complain(COMMAND, f"the package {error.name} is not installed: {_PACKAGES}")
        return Exit.FAILED
    other = None if _is_server(parsed.compare) else results.previous(Path(parsed.compare))
    targets = _targets(parsed)
    found = _references(parsed, targets[0].run)
    if not found:
        complain(COMMAND, "there is no recording with a text")
        return Exit.FAILED
    for target in targets:
        _transcribe(target, found)
    first, *compared = targets
    if compared:
        texts = {name: answer.text for name, answer in compared[0].file.answers.items()}
        other = results.Other(results.title(compared[0].system), texts)
    lines: list[str] = []
    if first.file.answers:
        normalise = not parsed.no_normalise
        measured = results.Results(
            first.system, found, first.file.answers, first.file.failed, normalise=normalise, other=other
        )
        try:
            lines = _written(measured, parsed)
        except OSError as error:  # the answers stay, so that the same command need not ask for them again
            complain(COMMAND, f"cannot_write: {shown(str(error.filename or parsed.json))}: {error.strerror}.")
            return Exit.FAILED
    for target in targets:
        target.file.path.unlink(missing_ok=True)
    for line in lines:
        print(line)
    return Exit.FAILED if any(target.file.failed for target in targets) else Exit.DONE


def _check(parsed: argparse.Namespace) -> None:
    """Refuse what cannot end well. Raises `UsageError`."""
    if parsed.job and parsed.local:
        raise UsageError("--job is for a server; leave out --local.")
    if parsed.compare_model and (not _is_server(parsed.compare) or (parsed.local and not parsed.compare)):
        raise UsageError("--compare-model is for a server; say --compare URL with it.")
    if parsed.html and os.path.abspath(parsed.html) == os.path.abspath(parsed.json):
        raise UsageError("--html and --json are the same file.")
    for option, file in (("--json", parsed.json), ("--html", parsed.html)):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise UsageError(f"{option} {shown(str(file))}: name a file in a directory that exists.")
        if file is not None and file.exists() and not parsed.force:
            raise UsageError(f"{shown(str(file))} exists; --force replaces it, and {option} FILE names another.")


def _is_server(compare: str | None) -> bool:
    """True if there is a server to compare with, or nothing: results are a file."""
    return compare is None or not (os.path.exists(compare) or compare.endswith(".json"))


@dataclass(frozen=True, slots=True)
class _Target:
    """A system that transcribes."""

    system: dict[str, Any]
    run: Run
    backend: AbstractAsyncContextManager[Backend] | None  # None: as the arguments say
    file: AnswerFile


def _targets(parsed: argparse.Namespace) -> list[_Target]:
    """Return the system that is measured and, if it is a server, the one that it is compared with."""
    server, model = ("local", parsed.model) if parsed.local else (arguments.server(parsed), parsed.model)
    if parsed.local and not model:
        from asr_server.cli.backends import local_settings

        model = local_settings(None).model_id
    targets = [_target(parsed, server, model, None, ".part")]
    if (parsed.compare or parsed.compare_model) and _is_server(parsed.compare):
        from asr_server.cli.backends import RemoteBackend

        try:
            address = arguments.server_address(parsed.compare) if parsed.compare else server
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--compare: {error}, and no file.") from None
        # The second server must not see the key of the first.
        key_file = parsed.compare_api_key_file
        key = arguments.word_of(key_file, "--compare-api-key-file") if key_file else ""
        if address == server and not key_file:
            key = arguments.key(parsed)
        there = {"server": address, "local": False, "api_key_file": key_file or parsed.api_key_file}
        other = argparse.Namespace(**{**vars(parsed), **there})
        backend = RemoteBackend(address, key, as_job=parsed.job)
        targets.append(_target(other, address, parsed.compare_model or parsed.model, backend, ".compared.part"))
    return targets


def _target(
    parsed: argparse.Namespace,
    server: str,
    model: str,
    backend: AbstractAsyncContextManager[Backend] | None,
    ending: str,
) -> _Target:
    request = TranscriptionRequest(
        # With --local the model is a setting of the worker, which has no other.
        model=DEFAULT_MODEL if parsed.local or not model else model,
        language=parsed.language,
        prompt=parsed.prompt,
        hotwords=tuple(parsed.hotword),
        output=OutputOptions(ResponseFormat.VERBOSE_JSON, segments=False, words=True),
    )
    system = {
        "server": server,
        "model": model,
        "language": request.language,
        "prompt": request.prompt,
        "hotwords": request.hotwords,
    }
    from asr_server.cli.evaluate.answers import AnswerFile

    file = parsed.json.with_name(parsed.json.name + ending)
    if parsed.force:
        file.unlink(missing_ok=True)
    return _Target(system, Run(COMMAND, parsed, request, [Format.VERBOSE_JSON]), backend, AnswerFile(file, system))


def _references(parsed: argparse.Namespace, run: Run) -> list[Reference]:
    """Return all recordings with their texts. Reports those that are left out. Raises `UsageError`."""
    place = Path(parsed.files[0])
    if place.is_dir():
        found, skipped = references.in_folder(run.find(), parsed.folders)
    elif parsed.folders:
        raise UsageError("--folders is for a folder; a manifest has columns for language and speaker.")
    elif place.is_file() and place.suffix.lower() in references.MANIFESTS:
        found, skipped = references.in_manifest(place)
    else:
        kinds = ", ".join(references.MANIFESTS)
        raise UsageError(f"{shown(parsed.files[0])} is neither a folder nor a manifest that ends in one of {kinds}.")
    if not parsed.quiet:
        run.report(skipped)
    stated = parsed.language or ""
    return [replace(one, language=stated) if stated else one for one in found]


def _transcribe(target: _Target, found: Sequence[Reference]) -> None:
    """Get the answers that are not in the file yet."""
    file = target.file
    left = [one.source for one in found if one.name not in file.answers]
    if file.answers and not target.run.parsed.quiet:
        kept = len(found) - len(left)
        complain(COMMAND, f"{kept} of {len(found)} answers are in {shown(str(file.path))} from a run before")
    if not left:
        return
    try:
        target.run.process(left, file, target.backend)
    except (KeyboardInterrupt, NoServer):
        if file.answers:
            path = shown(str(file.path))
            complain(COMMAND, f"{len(file.answers)} answers are kept in {path}; the same command continues from there")
        raise


def _written(found: Results, parsed: argparse.Namespace) -> list[str]:
    """Write the result files, and return the lines of the report. Raises OSError."""
    from asr_server.cli.evaluate import page

    if parsed.html:
        with whole_file(parsed.html, replace=parsed.force) as file:
            file.write(page.render(found, parsed.html.parent))
    with whole_file(parsed.json, replace=parsed.force) as file:
        file.write(found.as_json())
    return list(found.report(parsed.worst))
