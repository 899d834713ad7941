"""The answers of one system, kept in a file from the first to the last, so that a run that was interrupted goes on.

The file has a line of JSON that says which system and options it is of, and a line for each answer.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asr_server.cli.evaluate.references import MAX_TEXT_CHARS
from asr_server.cli.failure import Failure, UsageError, shown
from asr_server.cli.formats import Format
from asr_server.cli.recording_files import Contents, RecordingSource

_VERSION = 1


@dataclass(frozen=True, slots=True)
class System:
    """The system that is measured: a server or the engine in a process of this command, with its options."""

    server: str  # its address; "local" for the engine in a process of this command
    model: str
    language: str | None  # None where it is detected
    prompt: str
    hotwords: tuple[str, ...]

    @property
    def title(self) -> str:
        """Return the server and the model that was asked for."""
        return f"{self.server}, model {self.model}" if self.model else self.server


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word as the server wrote it."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """The text of one recording."""

    text: str
    language: str = ""  # as the server found it, empty if it does not say
    duration_s: float = 0.0
    words: tuple[TimedWord, ...] = ()


class AnswerFile:
    """Implements `Sink`: appends each answer to a file. Begins with the answers of a run that was interrupted.

    Raises `UsageError` where the file is another system's, is none of answers, or cannot be written.
    """

    def __init__(self, path: Path, system: System) -> None:
        self.path = path
        self.answers: dict[str, SystemAnswer] = {}  # by the name of the recording
        self.failures: dict[str, Failure] = {}
        # As it comes back from the file.
        self._head = json.loads(json.dumps({"version": _VERSION, **asdict(system)}))
        try:
            content = path.read_bytes() if path.exists() else b""
            whole = content[: content.rfind(b"\n") + 1]
            if content != whole:  # a line that was cut off in the middle is asked for again
                os.truncate(path, len(whole))
        except OSError as error:
            raise UsageError(f"{shown(str(path))} cannot be read: {error.strerror}.") from None
        if not os.access(path if content else path.parent, os.W_OK):
            raise UsageError(f"{shown(str(path))} cannot be written.")
        self._begun = bool(whole)
        if whole:
            self._read(whole)

    def _read(self, content: bytes) -> None:
        try:
            head, *lines = map(json.loads, content.splitlines())
            known = {line["name"]: _answer(line) for line in lines}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{shown(str(self.path))} is no file of answers; --force replaces it.") from None
        if head != self._head:
            raise UsageError(
                f"{shown(str(self.path))} has answers of another server, model or options; --force starts anew."
            )
        self.answers = known

    def _append(self, line: dict[str, Any]) -> None:
        # A run without any answer leaves no file behind that the next one, with other options, would have to replace.
        lines = [line] if self._begun else [self._head, line]
        with self.path.open("ab") as file:
            file.write(b"".join(json.dumps(one).encode() + b"\n" for one in lines))
        self._begun = True

    def check(self, source: RecordingSource) -> None:
        """Do nothing: the file could be written when the run began."""

    def delta(self, source: RecordingSource, text: str) -> None:
        """Do nothing: answers are not streamed."""

    def deliver(self, source: RecordingSource, contents: Contents) -> None:
        """Append the answer. Raises `Failure` for one without a text."""
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
        self._append(line)
        self.answers[line["name"]] = answer

    def drop(self, source: RecordingSource, failure: Failure) -> None:
        """Note that this recording has failed."""
        self.failures[source.below.as_posix()] = failure

    def close(self) -> None:
        """Do nothing: each answer is in the file."""


def _answer(line: dict[str, Any]) -> SystemAnswer:
    """Return the answer of a line. Raises ValueError, KeyError or TypeError for another form or too long a text."""
    if len(line["text"]) > MAX_TEXT_CHARS:
        raise ValueError
    words = tuple(TimedWord(str(text), float(start_s), float(end_s)) for text, start_s, end_s in line["words"])
    language = str(line["language"])
    return SystemAnswer(str(line["text"]), "" if language == "auto" else language, float(line["duration_s"]), words)
