"""The answers of one system, each in a file, so that an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from asr_server.cli.failure import Failure
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import Contents, FileSink, RecordingSource


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
    """A folder of answers. The name of a file says of which recording and system it is."""

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
