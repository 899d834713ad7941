"""Clients of the routes that take a recording, blocking and for an event loop. The recording is read from disk.

with FileClient("http://127.0.0.1:8100") as client:
    print(client.transcribe("talk.mp3"))
    print(client.process("talk.mp3", SubtitleRequest(language="German")).content.decode())
    for delta in client.deltas("talk.mp3"):
        print(delta, end="", flush=True)
    for word in client.align("talk.mp3", AlignmentRequest(text="Good morning.")):
        print(word.text, word.score, word.time)

`AsyncFileClient` has the same methods for `await` and `async for`; cancelling one cancels the request on the server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from asr_server.client import connection
from asr_server.client.connection import EventStream, FileError, Recording, ServerUnreachable
from asr_server.core.audio import s_to_ms
from asr_server.core.transcript import TimeSource, Word
from asr_server.features.alignments.requests import AlignedWord, AlignmentFormat, AlignmentRequest
from asr_server.recordings.requests import (
    DEFAULT_MODEL,
    ChannelMode,
    ChunkingStrategy,
    Request,
    ResponseFormat,
    Result,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)

__all__ = [
    "AlignedWord",
    "AlignmentFormat",
    "AlignmentRequest",
    "AsyncFileClient",
    "ChannelMode",
    "ChunkingStrategy",
    "Duration",
    "FileClient",
    "FileError",
    "ResponseFormat",
    "Result",
    "ServerUnreachable",
    "Span",
    "SubtitleRequest",
    "TranscriptionRequest",
    "TranslationRequest",
]
PLAIN_TEXT = TranscriptionRequest(response_format=ResponseFormat.TEXT)
ROUTES = {
    "transcription": "/v1/audio/transcriptions",
    "subtitles": "/v1/audio/subtitles",
    "translation": "/v1/audio/translations",
    "alignment": "/v1/audio/alignments",
}
_SPANS_ROUTE = "/v1/audio/transcriptions/stream"

Form = dict[str, str | list[str]]
T = TypeVar("T")
ItemOf = Callable[[dict[str, Any]], T | None]


@dataclass(frozen=True, slots=True)
class Duration:
    """The length of the recording. It comes before all spans, if the file states it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """The text of one span of speech. The last one is `whole`: the text of the whole recording.

    If speakers are wanted, the spans first come without speakers, and again at the end of the recording, each with one
    `speaker`.
    """

    text: str
    language: str  # as the server names it
    start_s: float
    end_s: float
    whole: bool  # it is the text of the whole recording
    speaker: str | None = None  # a letter or a name, None if it is not known


class FileClient(connection.Connection):
    """A blocking client. All errors are `FileError`. The connection is kept for the next recording."""

    def transcribe(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> str:
        """Return the text of the answer, in the format of the request: plain text by default."""
        return self.process(recording, request).content.decode()

    def align(self, recording: Recording, request: AlignmentRequest) -> list[AlignedWord]:
        """Return the words of the text, in order, with their times. The format of the request has no effect."""
        return _words(self.process(recording, replace(request, answer=AlignmentFormat.JSON)))

    def process(self, recording: Recording, request: Request | AlignmentRequest) -> Result:
        """Return the answer to any request: a transcript, subtitles, a translation or an alignment."""
        with connection.upload(recording) as file, self.answer("POST", **_sent(file, request)) as answer:
            return connection.result(answer.read(), answer.headers)

    def deltas(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> Generator[str, None, None]:
        """Yield the text as it is decoded. All deltas joined are the text. To stop early, close the iterator."""
        return self._items(recording, replace(request, stream=True), _delta)

    def spans(
        self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT
    ) -> Generator[Duration | Span, None, None]:
        """Yield each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._items(recording, request, _span, route=_SPANS_ROUTE)

    def _items(
        self, recording: Recording, request: TranscriptionRequest, item_of: ItemOf[T], route: str = ""
    ) -> Generator[T, None, None]:
        stream = EventStream()
        with connection.upload(recording) as file, self.answer("POST", **_sent(file, request, route)) as answer:
            for chunk in answer.iter_bytes():
                yield from filter(None, map(item_of, stream.feed(chunk)))
        stream.check_ended()


class AsyncFileClient(connection.AsyncConnection):
    """`FileClient` for an event loop. The recording is read from disk on the loop, 64 KiB at a time.

    To stop `deltas` and `spans` early, close the iterator (`aclosing`).
    """

    async def transcribe(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> str:
        return (await self.process(recording, request)).content.decode()

    async def align(self, recording: Recording, request: AlignmentRequest) -> list[AlignedWord]:
        return _words(await self.process(recording, replace(request, answer=AlignmentFormat.JSON)))

    async def process(self, recording: Recording, request: Request | AlignmentRequest) -> Result:
        with connection.upload(recording) as file:
            async with self.answer("POST", **_sent(file, request)) as answer:
                return connection.result(await answer.aread(), answer.headers)

    def deltas(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> AsyncGenerator[str, None]:
        return self._items(recording, replace(request, stream=True), _delta)

    def spans(
        self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT
    ) -> AsyncGenerator[Duration | Span, None]:
        return self._items(recording, request, _span, route=_SPANS_ROUTE)

    async def _items(
        self, recording: Recording, request: TranscriptionRequest, item_of: ItemOf[T], route: str = ""
    ) -> AsyncGenerator[T, None]:
        stream = EventStream()
        with connection.upload(recording) as file:
            async with self.answer("POST", **_sent(file, request, route)) as answer:
                async for chunk in answer.aiter_bytes():
                    for item in filter(None, map(item_of, stream.feed(chunk))):
                        yield item
        stream.check_ended()


def form(request: Request | AlignmentRequest) -> Form:
    """Return the fields of the multipart form, without the file: the model, and the options that differ from their
    defaults, since earlier servers do not know all. No field is empty: to some servers an empty field is a value."""
    sent: Form = {"model": request.model or DEFAULT_MODEL}
    for one in fields(request):
        value = getattr(request, one.name)
        if value and value != one.default and one.name != "task":
            # An alignment has formats of its own.
            sent["response_format" if one.name == "answer" else one.name] = _field(value)
    return sent


def _field(value: Any) -> str | list[str]:
    match value:
        case bool():
            return "true"
        case ChunkingStrategy():
            return json.dumps(asdict(value))
        case (bytes(), *_):
            return [f"data:audio/unknown;base64,{base64.b64encode(clip).decode()}" for clip in value]
        case tuple() | dict():
            # As JSON: the server splits other values at commas.
            return json.dumps(value)
        case _:
            return str(value)


def _sent(file: tuple[str, Any], request: Request | AlignmentRequest, route: str = "") -> dict[str, Any]:
    """Return the arguments of `answer`. A text is sent as a part like a file, since it may be too long for a field."""
    data, parts = form(request), {"file": file}
    if "text" in data:
        parts["text"] = ("text", str(data.pop("text")).encode())
    return {"route": route or ROUTES[request.task], "data": data, "files": parts}


def _words(result: Result) -> list[AlignedWord]:
    words = []
    for word in json.loads(result.content)["words"]:
        text, source, time = word["word"], word["source"], None
        if source is not None:
            time = Word(text, s_to_ms(word["start"]), s_to_ms(word["end"]), TimeSource(source))
        words.append(AlignedWord(text, word["score"], time))
    return words


def _delta(event: dict[str, Any]) -> str | None:
    return str(event["delta"]) if event["type"] == "transcript.text.delta" else None


def _span(event: dict[str, Any]) -> Duration | Span | None:
    if "text" in event:
        text, speaker = event["text"].strip(), event.get("speaker")
        return Span(text, event["language"], event["start"], event["end"], event["is_final"], speaker)
    return Duration(float(event["duration"])) if "duration" in event else None
