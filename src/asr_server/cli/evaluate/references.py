"""The recordings of an evaluation with the texts that are said in them: of a folder, or of a manifest.

In a folder the text of `talk.wav` is `talk.txt` or `talk.wav.txt`, or a line of LibriSpeech's `*.trans.txt`. A manifest
is CSV, TSV or JSON with a row for each recording, as Common Voice, NeMo and others write it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from asr_server.cli.failure import UsageError, shown
from asr_server.cli.recording_files import RecordingSource, Skipped
from asr_server.core.errors import InvalidInput
from asr_server.text import languages

# Seven hours of speech. The time to align two texts grows with the product of their lengths: seconds for this one.
MAX_TEXT_CHARS = 400_000
MAX_RECORDINGS = 100_000
_MAX_MANIFEST_BYTES = 200_000_000
MANIFESTS = (".csv", ".tsv", ".json", ".jsonl")
# The columns of a manifest, each by the names that data sets give it.
_COLUMNS = {
    "path": ("path", "file", "file_name", "filename", "audio", "audio_path", "audio_file", "audio_filepath", "wav"),
    "text": ("text", "sentence", "transcript", "transcription", "reference"),
    "language": ("language", "locale", "lang"),
    "speaker": ("speaker", "speaker_id", "client_id", "voice"),
}
_NO_TEXT = "no text"


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording and its text."""

    source: RecordingSource
    text: str  # empty where nobody speaks
    language: str = ""  # as stated; empty if it is not
    speaker: str = ""  # empty if nobody says who speaks

    @property
    def name(self) -> str:
        """Return the path below the folder, which is the same in every run over the same recordings."""
        return self.source.below.as_posix()


def in_folder(found: Iterable[RecordingSource], labels: Sequence[str] = ()) -> tuple[list[Reference], list[Skipped]]:
    """Return the recordings that have a text next to them, and those that have none.

    `labels`: "language" and "speaker", each the name of a folder, from the top.
    """
    references, skipped = [], []
    for source in found:
        assert source.path is not None, "standard input is no folder"
        text = _text_of(source.path)
        if isinstance(text, Skipped):
            skipped.append(text)
            continue
        given = dict(zip(labels, source.below.parent.parts, strict=False))
        references.append(Reference(source, text, given.get("language", ""), given.get("speaker", "")))
    return _bounded(references), skipped


def _text_of(path: Path) -> str | Skipped:
    for file in (path.with_suffix(".txt"), path.with_name(f"{path.name}.txt")):
        if file.is_file():
            return _checked(path, _content(file))
    return _checked(path, _librispeech(path.parent).get(path.stem))


def _checked(path: Path, text: str | None) -> str | Skipped:
    if text is None:
        return Skipped(path, _NO_TEXT)
    return Skipped(path, f"a text of over {MAX_TEXT_CHARS:_} characters") if len(text) > MAX_TEXT_CHARS else text


@cache
def _librispeech(folder: Path) -> dict[str, str]:
    """Return the texts of a folder's `*.trans.txt` by the names of the recordings, without their endings."""
    lines = (line for file in sorted(folder.glob("*.trans.txt")) for line in _content(file).splitlines())
    return {name: text for name, _, text in (line.partition(" ") for line in lines)}


def _content(file: Path, most_bytes: int = 4 * MAX_TEXT_CHARS + 4) -> str:
    """Return the text of a file, cut where it is longer than any that is used. Raises `UsageError`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(most_bytes + 1)
        # A character that the cut divides is no error: the text is too long then.
        return content.decode("utf-8-sig", "ignore" if len(content) > most_bytes else "strict")
    except OSError as error:
        raise UsageError(f"{shown(str(file))} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown(str(file))} is not text in UTF-8.") from None


def in_manifest(manifest: Path) -> tuple[list[Reference], list[Skipped]]:
    """Return the recordings of a manifest that have a text, and the rest. A row that occurs twice counts once.

    Paths are below the folder of the manifest, or below `clips` there, as in Common Voice. Raises `UsageError` for a
    manifest without the columns, and for a recording with two texts.
    """
    if manifest.stat().st_size > _MAX_MANIFEST_BYTES:
        raise UsageError(f"{shown(str(manifest))} has more than {_MAX_MANIFEST_BYTES:_} bytes.")
    references: dict[Path, Reference] = {}
    skipped = []
    for row, given in _rows(manifest):
        where = f"{shown(str(manifest))}: row {row}"
        fields = {name: _field(given, spellings) for name, spellings in _COLUMNS.items()}
        if not fields["path"]:
            raise UsageError(f"{where} has no path; the column is called {' or '.join(_COLUMNS['path'])}.")
        path = _recording(manifest.parent, fields["path"])
        text = _checked(path, fields["text"])
        if isinstance(text, Skipped):
            skipped.append(text)
            continue
        source = RecordingSource(path, Path(fields["path"]), listed=True)
        reference = Reference(source, text, fields["language"] or "", fields["speaker"] or "")
        known = references.setdefault(path, reference)
        if known.text != text:
            raise UsageError(f"{where} gives {shown(fields['path'])} another text than a row before it.")
        if known is not reference:
            skipped.append(Skipped(path, "listed twice"))
    return _bounded(list(references.values())), skipped


def _rows(manifest: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row with its number, from 1, by the names of its columns in lower case."""
    content = _content(manifest, _MAX_MANIFEST_BYTES)
    reader = _delimited if manifest.suffix.lower() in (".csv", ".tsv") else _objects
    number = 0
    try:
        for number, row in enumerate(reader(manifest, content), 1):
            if not isinstance(row, dict):
                raise UsageError(f"{shown(str(manifest))}: row {number} is no object.")
            yield number, {str(name).strip().lower(): value for name, value in row.items()}
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{shown(str(manifest))}: row {number + 1} cannot be read: {error}.") from None


def _delimited(manifest: Path, content: str) -> Iterator[dict[str | Any, Any]]:
    if manifest.suffix.lower() == ".csv":
        return csv.DictReader(io.StringIO(content, newline=""))
    # In TSV, as Common Voice writes it, quotes are characters like any other.
    return csv.DictReader(io.StringIO(content, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)


def _objects(_manifest: Path, content: str) -> Iterator[Any]:
    """A list, or an object on each line, as NeMo writes it."""
    if content.lstrip().startswith("["):
        yield from json.loads(content)
    else:
        yield from (json.loads(line) for line in content.splitlines() if line.strip())


def _field(row: dict[str, Any], spellings: Sequence[str]) -> str | None:
    """Return the value of a column; None for one that is not there."""
    value = next((row[name] for name in spellings if row.get(name) is not None), None)
    return None if value is None else str(value).strip()


def _recording(folder: Path, path: str) -> Path:
    if (folder / path).exists() or not (folder / "clips" / path).exists():
        return folder / path
    return folder / "clips" / path


def _bounded(references: list[Reference]) -> list[Reference]:
    if len(references) > MAX_RECORDINGS:
        raise UsageError(f"there are more than {MAX_RECORDINGS:_} recordings.")
    return references


@cache
def language_name(stated: str) -> str:
    """Return the English name of a language; a text that is none as it is."""
    try:
        return languages.find(stated).name if stated else ""
    except InvalidInput:
        return stated
