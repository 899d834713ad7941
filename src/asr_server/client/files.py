"""A client of the file routes, blocking and not: a recording goes out from disk, text comes back. Decodes nothing.

with FileClient("http://127.0.0.1:8100") as client:
    print(client.transcribe("talk.mp3"))
    for piece in client.pieces("talk.mp3", FileOptions(language="en")):
        print(piece, end="", flush=True)

`AsyncFileClient` has the same methods for `await` and `async for`; cancelling one takes the work out of the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from asr_server.client import exchange
from asr_server.client.exchange import FileError, Recording, Response, ServerUnreachable, T
from asr_server.client.options import FileOptions, Options, SubtitleOptions, TranslationOptions
from asr_server.client.sse import EventStream

__all__ = [
    "AsyncFileClient",
    "Duration",
    "FileClient",
    "FileError",
    "FileOptions",
    "Response",
    "ServerUnreachable",
    "Span",
    "SubtitleOptions",
    "TranslationOptions",
]
_SPANS_ROUTE = "/v1/audio/transcriptions/stream"


@dataclass(frozen=True, slots=True)
class Duration:
    """How long the recording is; comes before any `Span`, from servers that say it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Span:
    """The text of one finished span of speech, or with `whole` of the recording, which comes last."""

    text: str
    language: str
    start_s: float
    end_s: float
    whole: bool


class FileClient:
    """Blocks. Errors are `FileError`; `ServerUnreachable` among them. One connection, kept for the next recording.

    `key`: for a server that has keys.
    """

    def __init__(self, server: str = "http://127.0.0.1:8100", *, key: str = "") -> None:
        self._http = httpx.Client(**exchange.place(server, key))

    def __enter__(self) -> FileClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the server drops what was under way."""
        self._http.close()

    def transcribe(self, recording: Recording, options: FileOptions | None = None) -> str:
        """The server's answer in `options.response_format`, as it came."""
        return self.make(recording, options or FileOptions()).content

    def subtitles(self, recording: Recording, options: SubtitleOptions | None = None) -> Response:
        """A subtitle file."""
        return self.make(recording, options or SubtitleOptions())

    def translate(self, recording: Recording, options: TranslationOptions | None = None) -> Response:
        """The transcript, or subtitles, in another language."""
        return self.make(recording, options or TranslationOptions())

    def make(self, recording: Recording, options: Options) -> Response:
        """Whatever the options ask for."""
        with self._answer(options.route, recording, options.form) as answer:
            return exchange.made(answer.read(), answer.headers)

    def pieces(self, recording: Recording, options: FileOptions | None = None) -> Generator[str, None, None]:
        """The text as it is decoded; all pieces joined are the whole. Close it to stop early."""
        return self._events(FileOptions.route, recording, _streamed(options or FileOptions()), _piece)

    def spans(self, recording: Recording, options: FileOptions | None = None) -> Generator[Duration | Span, None, None]:
        """Each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, (options or FileOptions()).fields, _span)

    def _events(
        self, route: str, recording: Recording, fields: dict[str, Any], item_of: Callable[[dict[str, Any]], T | None]
    ) -> Generator[T, None, None]:
        stream = EventStream()
        with self._answer(route, recording, fields) as answer:
            for chunk in answer.iter_bytes():
                yield from exchange.read(stream.feed(chunk), item_of)
        exchange.check_ended(stream)

    @contextmanager
    def _answer(self, route: str, recording: Recording, fields: dict[str, Any]) -> Iterator[httpx.Response]:
        with (
            exchange.named_errors(),
            exchange.upload(recording) as file,
            self._http.stream("POST", route, data=fields, files={"file": file}) as answer,
        ):
            if not answer.is_success:
                answer.read()
                raise exchange.refusal(answer)
            yield answer


class AsyncFileClient(exchange.AsyncConnection):
    """The same for an event loop; the recording is read from disk on the loop, 64 KiB at a time."""

    async def transcribe(self, recording: Recording, options: FileOptions | None = None) -> str:
        """The server's answer in `options.response_format`, as it came."""
        return (await self.make(recording, options or FileOptions())).content

    async def subtitles(self, recording: Recording, options: SubtitleOptions | None = None) -> Response:
        """A subtitle file."""
        return await self.make(recording, options or SubtitleOptions())

    async def translate(self, recording: Recording, options: TranslationOptions | None = None) -> Response:
        """The transcript, or subtitles, in another language."""
        return await self.make(recording, options or TranslationOptions())

    async def make(self, recording: Recording, options: Options) -> Response:
        """Whatever the options ask for."""
        async with self._answer(options.route, recording, options.form) as answer:
            return exchange.made(await answer.aread(), answer.headers)

    def pieces(self, recording: Recording, options: FileOptions | None = None) -> AsyncGenerator[str, None]:
        """The text as it is decoded; all pieces joined are the whole. Close it (`aclosing`) to stop early."""
        return self._events(FileOptions.route, recording, _streamed(options or FileOptions()), _piece)

    def spans(self, recording: Recording, options: FileOptions | None = None) -> AsyncGenerator[Duration | Span, None]:
        """Each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, (options or FileOptions()).fields, _span)

    async def _events(
        self, route: str, recording: Recording, fields: dict[str, Any], item_of: Callable[[dict[str, Any]], T | None]
    ) -> AsyncGenerator[T, None]:
        stream = EventStream()
        async with self._answer(route, recording, fields) as answer:
            async for chunk in answer.aiter_bytes():
                for item in exchange.read(stream.feed(chunk), item_of):
                    yield item
        exchange.check_ended(stream)

    @asynccontextmanager
    async def _answer(self, route: str, recording: Recording, fields: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        with exchange.named_errors(), exchange.upload(recording) as file:
            async with self._http.stream("POST", route, data=fields, files={"file": file}) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise exchange.refusal(answer)
                yield answer


def _streamed(options: FileOptions) -> dict[str, Any]:
    return options.fields | {"stream": "true"}


def _piece(event: dict[str, Any]) -> str | None:
    return str(event["delta"]) if event["type"] == "transcript.text.delta" else None


def _span(event: dict[str, Any]) -> Duration | Span | None:
    if "text" in event:
        return Span(event["text"], event["language"], event["start"], event["end"], event["is_final"])
    return Duration(float(event["duration"])) if "duration" in event else None
