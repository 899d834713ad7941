"""The answers of one system in a file, from which an interrupted run continues.

The first line has the system and its options, each further line one answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_server.cli.evaluate.references import MAX_TEXT_CHARS
from asr_server.cli.evaluate.results import SystemAnswer
from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import Contents, RecordingSource

_VERSION = 1


class AnswerFile:
    """Implements `Sink`. Raises `UsageError` if the file belongs to another system or cannot be used."""

    def __init__(self, path: Path, system: Mapping[str, Any]) -> None:
        self.path = path
        self.answers: dict[str, SystemAnswer] = {}  # by the name of the recording
        self.failed: dict[str, str] = {}  # error codes by the name of the recording
        self._head = json.loads(json.dumps({"version": _VERSION, **system}))  # as it comes back from the file
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if content != whole:  # this recording is transcribed again
                os.truncate(path, len(whole))
        except OSError as error:
            raise UsageError(f"{shown(str(path))} cannot be read: {error.strerror}.") from None
        if not os.access(path if content else path.parent, os.W_OK):
            raise UsageError(f"{shown(str(path))} cannot be written.")
        if whole:
            self._read(whole)

    def _read(self, content: bytes) -> None:
        try:
            head, *lines = map(json.loads, content.splitlines())
            self.answers = {line["name"]: _answer(line) for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{shown(str(self.path))} is no file of answers; --force replaces it.") from None
        if head != self._head:
            raise UsageError(
                f"{shown(str(self.path))} has answers of another server, model or options; --force starts anew."
            )

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Append the answer. Raises `Failure` if it has no text."""
        try:
            given = json.loads(contents[Format.VERBOSE_JSON])
            line = {
                "name": source.below.as_posix(),
                "text": given["text"],
                "language": given.get("language_code") or given.get("language") or "",
                "duration_s": given.get("duration") or 0.0,
                "words": [[word["word"], word["start"], word["end"]] for word in given.get("words") or ()],
            }
            answer = _answer(line)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Failure("no_answer", "The server did not answer with verbose_json that can be measured.") from None
        # The head is written with the first answer, so a run without answers leaves no file.
        lines = [line] if self.answers else [self._head, line]
        with self.path.open("ab") as file:
            file.write(b"".join(json.dumps(one).encode() + b"\n" for one in lines))
        self.answers[line["name"]] = answer

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Note that this recording has failed."""
        self.failed[source.below.as_posix()] = failure.code

    def check(self, source: RecordingSource) -> None: ...
    def delta(self, source: RecordingSource, text: str) -> None: ...
    def close(self) -> None: ...


def _answer(line: dict[str, Any]) -> SystemAnswer:
    """Return the answer of a line. Raises ValueError, KeyError or TypeError if it is malformed or too long."""
    if len(line["text"]) > MAX_TEXT_CHARS:
        raise ValueError
    words = tuple((str(text), float(start_s), float(end_s)) for text, start_s, end_s in line["words"])
    language = str(line["language"])
    return SystemAnswer(str(line["text"]), "" if language == "auto" else language, float(line["duration_s"]), words)
