"""What a batch asks of whoever hears its recordings, a server or this process, and what it gets. No implementation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Protocol

from asr_server.service.requests import ResponseFormat, WordTimes

# Where times come from, as people and the wire say it.
MODES = {"accurate": WordTimes.ALIGNED, "fast": WordTimes.ESTIMATED}
_UNALIGNED = {
    "estimated": "its times are estimated: no aligner helped",
    "mixed": "some of its times are estimated: the aligner did not help with all words",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How subtitles are made: the widest line in columns, the most lines of a cue, where times come from."""

    max_line_columns: int = 42
    max_lines: int = 2
    times: WordTimes = WordTimes.ALIGNED


@dataclass(frozen=True, slots=True)
class Target:
    """Another language, by its tag. `bilingual`: along with the source. `glossary`: terms and their translations."""

    tag: str
    bilingual: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What to make of every recording of a batch. "" leaves a choice to the model.

    `stream`: the words come as they are decoded. `model` is for a server: a name that it serves. `layout`: a subtitle
    file is made, by these rules. `target`: and translated. `as_job`: handed to a server that works on it meanwhile.
    """

    response_format: ResponseFormat = ResponseFormat.TEXT
    language: str = ""
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    model: str = ""
    stream: bool = False
    layout: Layout | None = None
    target: Target | None = None
    as_job: bool = False


@dataclass(frozen=True, slots=True)
class JobAccepted:
    """The server works on it as this job, whether or not anybody waits; comes before all else."""

    job: str


@dataclass(frozen=True, slots=True)
class Duration:
    """How long the recording is."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """All speech up to there is text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WordMode:
    """New text behind all before it."""

    text: str


@dataclass(frozen=True, slots=True)
class BackendResult:
    """The result; the last item, once. After `WordMode`, what ends them. `remarks`: notes for the user."""

    content: str
    remarks: tuple[str, ...] = ()


Event = JobAccepted | Duration | Progress | WordMode | BackendResult


def remarks(wish: RequestOptions, timing: str, untranslated: int) -> tuple[str, ...]:
    """What a person should know of subtitles and translations. `timing`: aligned, estimated, mixed, "" for no times."""
    found = []
    if wish.layout and wish.layout.times is WordTimes.ALIGNED and timing in _UNALIGNED:
        found.append(_UNALIGNED[timing])
    if untranslated:
        found.append(f"{untranslated} lines could not be translated and stayed in the source language")
    return tuple(found)


class Backend(Protocol):
    """An async context; `hear` may run for many recordings at once."""

    async def __aenter__(self) -> Backend: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, recording: BinaryIO, wish: RequestOptions) -> AsyncGenerator[Event, None]:
        """The events of one recording, a real file. Raises `Failure`, `NoServer` and `UsageError`."""

    async def forget(self, job: str) -> None:
        """The result of a job that was `JobAccepted` is kept elsewhere now."""
