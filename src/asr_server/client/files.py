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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import httpx

from asr_server.client import connection
from asr_server.client.connection import EventStream, FileError, Recording, ServerUnreachable, T
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


@dataclass(frozen=True, slots=True)
class Duration:
    """The length of the recording. It comes before all spans, where the file states it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """The text of one span of speech. The last one is `whole`: the text of the whole recording.

    Where speakers are wanted, the spans come without them first, and once more at the end of the recording, each of one
    `speaker`.
    """

    text: str
    language: str  # as the server names it
    start_s: float
    end_s: float
    whole: bool  # it is the text of the whole recording
    speaker: str | None = None  # a letter or a name, None where it is not known


class FileClient(connection.Connection):
    """Blocks. All errors are `FileError`. The connection is kept for the next recording."""

    def transcribe(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> str:
        """Return the text of the answer, in the format of the request: plain text by default."""
        return self.process(recording, request).content.decode()

    def align(self, recording: Recording, request: AlignmentRequest) -> list[AlignedWord]:
        """Return the words of the text, in order, with their times. The format of the request has no effect."""
        return _words(self.process(recording, replace(request, answer=AlignmentFormat.JSON)))

    def process(self, recording: Recording, request: Request | AlignmentRequest) -> Result:
        """Return the answer to any request: a transcript, subtitles, a translation or an alignment."""
        with self._post(ROUTES[request.task], recording, form(request)) as answer:
            return connection.result(answer.read(), answer.headers)

    def deltas(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> Generator[str, None, None]:
        """Return the text as it is decoded. All deltas joined are the text. To stop early, close the iterator."""
        fields = form(replace(request, stream=True))
        return self._events(ROUTES[request.task], recording, fields, _delta)

    def spans(
        self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT
    ) -> Generator[Duration | Span, None, None]:
        """Yield each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, form(request), _span)

    def _events(
        self, route: str, recording: Recording, fields: Form, item_of: Callable[[dict[str, Any]], T | None]
    ) -> Generator[T, None, None]:
        stream = EventStream()
        with self._post(route, recording, fields) as answer:
            for chunk in answer.iter_bytes():
                yield from connection.items(stream.feed(chunk), item_of)
        connection.check_ended(stream)

    @contextmanager
    def _post(self, route: str, recording: Recording, fields: Form) -> Iterator[httpx.Response]:
        with (
            connection.map_errors(),
            connection.upload(recording) as file,
            self._http.stream("POST", route, data=fields, files=_parts(file, fields)) as answer,
        ):
            if not answer.is_success:
                answer.read()
                raise connection.error_of(answer)
            yield answer


class AsyncFileClient(connection.AsyncConnection):
    """`FileClient` for an event loop. The recording is read from disk on the loop, 64 KiB at a time."""

    async def transcribe(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> str:
        """Return the text of the answer, in the format of the request: plain text by default."""
        return (await self.process(recording, request)).content.decode()

    async def align(self, recording: Recording, request: AlignmentRequest) -> list[AlignedWord]:
        """Return the words of the text, in order, with their times. The format of the request has no effect."""
        return _words(await self.process(recording, replace(request, answer=AlignmentFormat.JSON)))

    async def process(self, recording: Recording, request: Request | AlignmentRequest) -> Result:
        """Return the answer to any request: a transcript, subtitles, a translation or an alignment."""
        async with self._post(ROUTES[request.task], recording, form(request)) as answer:
            return connection.result(await answer.aread(), answer.headers)

    def deltas(self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT) -> AsyncGenerator[str, None]:
        """Return the text as it is decoded. All deltas joined are the text. To stop early, close the iterator
        (`aclosing`)."""
        fields = form(replace(request, stream=True))
        return self._events(ROUTES[request.task], recording, fields, _delta)

    def spans(
        self, recording: Recording, request: TranscriptionRequest = PLAIN_TEXT
    ) -> AsyncGenerator[Duration | Span, None]:
        """Yield each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, form(request), _span)

    async def _events(
        self, route: str, recording: Recording, fields: Form, item_of: Callable[[dict[str, Any]], T | None]
    ) -> AsyncGenerator[T, None]:
        stream = EventStream()
        async with self._post(route, recording, fields) as answer:
            async for chunk in answer.aiter_bytes():
                for item in connection.items(stream.feed(chunk), item_of):
                    yield item
        connection.check_ended(stream)

    @asynccontextmanager
    async def _post(self, route: str, recording: Recording, fields: Form) -> AsyncIterator[httpx.Response]:
        with connection.map_errors(), connection.upload(recording) as file:
            async with self._http.stream("POST", route, data=fields, files=_parts(file, fields)) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise connection.error_of(answer)
                yield answer


def form(request: Request | AlignmentRequest) -> Form:
    """Return the fields of the multipart form, without the file: the model, and the options that do not have their
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
            # As a JSON array: the server splits other values at commas.
            return json.dumps(value)
        case _:
            return str(value)


def _parts(file: tuple[str, Any], fields: Form) -> dict[str, tuple[str, Any]]:
    """Return the parts that are files: the recording and, taken out of the fields, a text, which may be longer than
    they."""
    text = fields.pop("text", None)
    return {"file": file} if text is None else {"file": file, "text": ("text", str(text).encode())}


def _words(result: Result) -> list[AlignedWord]:
    return [
        AlignedWord(
            word["word"],
            word["score"],
            None
            if word["source"] is None
            else Word(word["word"], s_to_ms(word["start"]), s_to_ms(word["end"]), TimeSource(word["source"])),
        )
        for word in json.loads(result.content)["words"]
    ]


def _delta(event: dict[str, Any]) -> str | None:
    return str(event["delta"]) if event["type"] == "transcript.text.delta" else None


def _span(event: dict[str, Any]) -> Duration | Span | None:
    if "text" in event:
        text, speaker = event["text"].strip(), event.get("speaker")
        return Span(text, event["language"], event["start"], event["end"], event["is_final"], speaker)
    return Duration(float(event["duration"])) if "duration" in event else None
