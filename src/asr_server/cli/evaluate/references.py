"""The texts to compare: the reference texts of recordings, from a folder or a manifest, and the answers of a system."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import Contents, FileSink, RecordingSource, Skipped

MANIFESTS = (".csv", ".tsv", ".json", ".jsonl")
# The columns of a manifest, each with the names that data sets use.
_COLUMNS = {
    "path": ("path", "file", "file_name", "filename", "audio", "audio_path", "audio_file", "audio_filepath", "wav"),
    "text": ("text", "sentence", "transcript", "transcription", "reference"),
    "language": ("language", "locale", "lang"),
    "speaker": ("speaker", "speaker_id", "client_id", "voice"),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording and its text."""

    source: RecordingSource
    text: str  # empty if nobody speaks
    language: str = ""  # as the folder or the manifest states it; empty if neither does
    speaker: str = ""  # empty if unknown

    @property
    def name(self) -> str:
        """Return the path below the folder, which is the same in every run."""
        return self.source.below.as_posix()


def in_folder(found: Iterable[RecordingSource], labels: Sequence[str] = ()) -> tuple[list[Reference], list[Skipped]]:
    """Return the recordings with a text (`talk.txt`, `talk.wav.txt`, or a line of `*.trans.txt`), and those without.

    `labels` says what each level of folders stands for, from the top: "language", "speaker".
    """
    references, skipped = list[Reference](), list[Skipped]()
    for source in found:
        assert source.path is not None, "standard input is not in a folder"
        beside = (source.path.with_suffix(".txt"), source.path.with_name(f"{source.path.name}.txt"))
        text = next((_content(file) for file in beside if file.is_file()), None)
        if text is None:
            text = _librispeech(source.path.parent).get(source.path.stem)
        if text is None:
            skipped.append(Skipped(source.path, "no text"))
        else:
            references.append(Reference(source, text, **dict(zip(labels, source.below.parent.parts, strict=False))))
    return references, skipped


@cache
def _librispeech(folder: Path) -> dict[str, str]:
    """Return the texts of the `*.trans.txt` files in a folder, by the names of the recordings without endings."""
    lines = (line for file in sorted(folder.glob("*.trans.txt")) for line in _content(file).splitlines())
    return {name: text for name, _, text in (line.partition(" ") for line in lines)}


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{shown(str(file))} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown(str(file))} is not text in UTF-8.") from None


def in_manifest(manifest: Path) -> tuple[list[Reference], list[Skipped]]:
    """Return the recordings of a manifest that have a text, and the skipped rows. A repeated row counts once.

    Paths are relative to the manifest's folder, or to `clips` in it, as in Common Voice. Raises `UsageError` if columns
    are missing, or a recording has two texts.
    """
    references, skipped = dict[Path, Reference](), list[Skipped]()
    for row, given in _rows(manifest):
        where = f"{shown(str(manifest))}: row {row}"
        fields = {column: _field(given, names) for column, names in _COLUMNS.items()}
        if not (name := fields["path"]):
            raise UsageError(f"{where} has no path; the column is called {' or '.join(_COLUMNS['path'])}.")
        in_clips, path = manifest.parent / "clips" / name, manifest.parent / name
        path = in_clips if in_clips.exists() and not path.exists() else path
        if (text := fields["text"]) is None:
            skipped.append(Skipped(path, "no text"))
        elif path not in references:
            source = RecordingSource(path, Path(name), listed=True)
            references[path] = Reference(source, text, fields["language"] or "", fields["speaker"] or "")
        elif references[path].text == text:
            skipped.append(Skipped(path, "listed twice"))
        else:
            raise UsageError(f"{where} gives {shown(name)} another text than a row before it.")
    return list(references.values()), skipped


def _rows(manifest: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each row, from 1, and its values by lower-case column name."""
    content, suffix, number = _content(manifest), manifest.suffix.lower(), 0
    rows: Iterable[Any]
    try:
        if suffix == ".csv":
            rows = csv.DictReader(io.StringIO(content, newline=""))
        elif suffix == ".tsv":  # as Common Voice writes it: quotes are characters like any other
            rows = csv.DictReader(io.StringIO(content, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
        elif content.lstrip().startswith("["):
            rows = json.loads(content)
        else:  # an object on each line, as NeMo writes it
            rows = (json.loads(line) for line in content.splitlines() if line.strip())
        for number, row in enumerate(rows, 1):
            if not isinstance(row, dict):
                raise UsageError(f"{shown(str(manifest))}: row {number} is not an object.")
            yield number, {str(name).strip().lower(): value for name, value in row.items()}
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{shown(str(manifest))}: row {number + 1} cannot be read: {error}.") from None


def _field(row: dict[str, Any], names: Sequence[str]) -> str | None:
    value = next((row[name] for name in names if row.get(name) is not None), None)
    return None if value is None else str(value).strip()


class SystemAnswer(NamedTuple):
    """The text of one recording as a system wrote it."""

    text: str
    language: str = ""  # as the system found it; empty if it does not say
    duration_s: float = 0.0
    words: tuple[tuple[str, float, float], ...] = ()  # text, start and end in seconds


def answer_of(content: str | bytes) -> SystemAnswer:
    """Return the answer in verbose_json. Raises `Failure` if it has no text."""
    try:
        given = json.loads(content)
        language = given.get("language_code") or given.get("language") or ""
        words = tuple(
            (str(word["word"]), float(word["start"]), float(word["end"])) for word in given.get("words") or ()
        )
        text: str = given["text"].strip()
        return SystemAnswer(text, "" if language == "auto" else language, float(given.get("duration") or 0), words)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failure("no_answer", "The server did not answer with verbose_json that can be measured.") from None


class AnswerFiles(FileSink):
    """A folder of answers. The name of a file is a hash of the recording's path and the system."""

    def __init__(self, folder: Path, system: Mapping[str, Any], sources: Iterable[RecordingSource]) -> None:
        self.system, self.failed = system, dict[str, str]()  # error codes by the name of the recording
        whose = json.dumps(system)
        digests = {one: sha256(f"{whose} {one.below}".encode(errors="surrogateescape")).hexdigest() for one in sources}
        self.files = {one: folder / digest for one, digest in digests.items()}
        super().__init__({one: {Format.VERBOSE_JSON: file} for one, file in self.files.items()}, skip=True)

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Keep the answer. Raises `Failure` if it has no text."""
        answer_of(contents[Format.VERBOSE_JSON])
        super().deliver(source, contents)

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        self.failed[source.below.as_posix()] = failure.code

    def read(self) -> dict[str, SystemAnswer]:
        """Return the answers by the names of the recordings."""
        there = {source.below.as_posix(): file for source, file in self.files.items() if file.exists()}
        return {name: answer_of(file.read_bytes()) for name, file in there.items()}
