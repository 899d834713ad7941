"""What a batch asks of whoever hears its recordings, a server or this process, and what it gets. No implementation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol

from asr_server.service.request import ResponseFormat


@dataclass(frozen=True, slots=True)
class Wish:
    """How to transcribe every recording of a batch. "" leaves a choice to the model.

    `stream`: the words come as they are decoded. `model` is for a server: a name that it serves.
    """

    response_format: ResponseFormat = ResponseFormat.TEXT
    language: str = ""
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    model: str = ""
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Length:
    """How long the recording is."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reached:
    """All speech up to there is text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Words:
    """New text behind all before it."""

    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The transcript in the format that was wished for; comes last, once. After `Words`, what ends them."""

    content: str


Event = Length | Reached | Words | Answer


class Hearer(Protocol):
    """An async context; `hear` may run for many recordings at once."""

    async def __aenter__(self) -> Hearer: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hear(self, recording: BinaryIO, wish: Wish) -> AsyncGenerator[Event, None]:
        """The events of one recording, a real file. Raises `Failure`, `NoServer` and `UsageError`."""
