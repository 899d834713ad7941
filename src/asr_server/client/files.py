"""A client of the file routes, blocking and not: a recording goes out from disk, text comes back. Decodes nothing.

with FileClient("http://127.0.0.1:8100") as client:
    print(client.transcribe("talk.mp3"))
    for piece in client.pieces("talk.mp3", FileOptions(language="en")):
        print(piece, end="", flush=True)

`AsyncFileClient` has the same methods for `await` and `async for`; cancelling one takes the work out of the server.
"""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeVar

import httpx

from asr_server.client.sse import EventStream

_ROUTE = "/v1/audio/transcriptions"
_SPANS_ROUTE = "/v1/audio/transcriptions/stream"
_CONNECT_TIMEOUT_S = 10.0
# A proxy for the world outside is none for this machine.
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")

T = TypeVar("T")
Recording = str | Path | BinaryIO


class FileError(Exception):
    """The recording was not transcribed: `code` is stable, `message` for people.

    `retry_after_s`: the server would take the same request after that many seconds; None when it would not.
    """

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class ServerUnreachable(FileError):
    """Nothing answers at the address."""


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What is asked of the server. "" leaves a choice to it. `response_format` is for `transcribe` alone.

    `model`: a name from /v1/models; the default means the model that is there.
    """

    language: str = ""
    prompt: str = ""
    hotwords: tuple[str, ...] = ()
    model: str = "whisper-1"
    response_format: str = "text"

    @property
    def fields(self) -> dict[str, str | list[str]]:
        """The form's text fields."""
        named = {"model": self.model, "language": self.language, "prompt": self.prompt}
        return {name: value for name, value in named.items() if value} | {"hotwords": list(self.hotwords)}


@dataclass(frozen=True, slots=True)
class Length:
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
    """Blocks. Errors are `FileError`; `ServerUnreachable` among them. One connection, kept for the next recording."""

    def __init__(self, server: str = "http://127.0.0.1:8100") -> None:
        self._http = httpx.Client(
            base_url=server,
            timeout=_timeout(),
            mounts=dict.fromkeys(_LOOPBACK),
        )

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
        options = options or FileOptions()
        with self._answer(_ROUTE, recording, _whole_answer(options)) as answer:
            return answer.read().decode()

    def pieces(self, recording: Recording, options: FileOptions | None = None) -> Generator[str, None, None]:
        """The text as it is decoded; all pieces joined are the whole. Close it to stop early."""
        return self._events(_ROUTE, recording, _streamed(options or FileOptions()), _piece)

    def spans(self, recording: Recording, options: FileOptions | None = None) -> Generator[Length | Span, None, None]:
        """Each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, (options or FileOptions()).fields, _span)

    def _events(
        self, route: str, recording: Recording, fields: dict[str, Any], read: Callable[[dict[str, Any]], T | None]
    ) -> Generator[T, None, None]:
        stream = EventStream()
        with self._answer(route, recording, fields) as answer:
            for chunk in answer.iter_bytes():
                yield from _read(stream.feed(chunk), read)
        _check_ended(stream)

    @contextmanager
    def _answer(self, route: str, recording: Recording, fields: dict[str, Any]) -> Iterator[httpx.Response]:
        with (
            _named_errors(),
            _upload(recording) as file,
            self._http.stream("POST", route, data=fields, files={"file": file}) as answer,
        ):
            if answer.is_error:
                answer.read()
                raise _refusal(answer)
            yield answer


class AsyncFileClient:
    """The same for an event loop; the recording is read from disk on the loop, 64 KiB at a time."""

    def __init__(self, server: str = "http://127.0.0.1:8100") -> None:
        self._http = httpx.AsyncClient(
            base_url=server,
            timeout=_timeout(),
            mounts=dict.fromkeys(_LOOPBACK),
        )

    async def __aenter__(self) -> AsyncFileClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the server drops what was under way."""
        await self._http.aclose()

    async def transcribe(self, recording: Recording, options: FileOptions | None = None) -> str:
        """The server's answer in `options.response_format`, as it came."""
        options = options or FileOptions()
        async with self._answer(_ROUTE, recording, _whole_answer(options)) as answer:
            return (await answer.aread()).decode()

    def pieces(self, recording: Recording, options: FileOptions | None = None) -> AsyncGenerator[str, None]:
        """The text as it is decoded; all pieces joined are the whole. Close it (`aclosing`) to stop early."""
        return self._events(_ROUTE, recording, _streamed(options or FileOptions()), _piece)

    def spans(self, recording: Recording, options: FileOptions | None = None) -> AsyncGenerator[Length | Span, None]:
        """Each span of speech when it is finished, in the order of the recording, then the whole."""
        return self._events(_SPANS_ROUTE, recording, (options or FileOptions()).fields, _span)

    async def _events(
        self, route: str, recording: Recording, fields: dict[str, Any], read: Callable[[dict[str, Any]], T | None]
    ) -> AsyncGenerator[T, None]:
        stream = EventStream()
        async with self._answer(route, recording, fields) as answer:
            async for chunk in answer.aiter_bytes():
                for item in _read(stream.feed(chunk), read):
                    yield item
        _check_ended(stream)

    @asynccontextmanager
    async def _answer(self, route: str, recording: Recording, fields: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        with _named_errors(), _upload(recording) as file:
            async with self._http.stream("POST", route, data=fields, files={"file": file}) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _refusal(answer)
                yield answer


def _timeout() -> httpx.Timeout:
    """None for answers: how long a recording may take is the server's to limit, and it does."""
    return httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)


def _whole_answer(options: FileOptions) -> dict[str, Any]:
    return options.fields | {"response_format": options.response_format}


def _streamed(options: FileOptions) -> dict[str, Any]:
    return options.fields | {"stream": "true"}


@contextmanager
def _upload(recording: Recording) -> Iterator[tuple[str, Any]]:
    """Name and open file for the form. What the caller opened stays open."""
    with ExitStack() as stack:
        if isinstance(recording, str | Path):
            file: BinaryIO = stack.enter_context(Path(recording).open("rb"))
        else:
            file = recording
        # The server goes by the content; a name is sent because a part without one is no file.
        yield "recording", file if _has_length(file) else _Pipe(file)


class _Pipe:
    """Hides the descriptor: httpx would take its size, 0, for the length of what comes through it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.read = stream.read


def _has_length(file: BinaryIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (AttributeError, OSError):  # no descriptor: in memory, and httpx finds its length by seeking
        return True


@contextmanager
def _named_errors() -> Iterator[None]:
    """httpx's many errors as the two that matter to a caller."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ServerUnreachable("server_unreachable", f"No server answers ({error}).") from error
    except httpx.TransportError as error:
        raise FileError("connection_lost", f"The connection broke ({type(error).__name__}).") from error


def _refusal(answer: httpx.Response) -> FileError:
    try:
        told = answer.json()["error"]
        code, message = str(told["code"] or "error"), str(told["message"])
    except (ValueError, KeyError, TypeError):  # something else than our server stands at this address, or before it
        code, message = f"http_{answer.status_code}", f"The server answered {answer.status_code} without a reason."
    wait_s = answer.headers.get("Retry-After", "")
    return FileError(code, message, retry_after_s=float(wait_s) if wait_s.isdigit() else None)


def _read(events: list[dict[str, Any]], read: Callable[[dict[str, Any]], T | None]) -> Iterator[T]:
    for event in events:
        if "error" in event:
            raise FileError(str(event["error"]["code"]), str(event["error"]["message"]))
        item = read(event)
        if item is not None:
            yield item


def _check_ended(stream: EventStream) -> None:
    if not stream.ended:
        raise FileError("connection_lost", "The server's answer broke off.")


def _piece(event: dict[str, Any]) -> str | None:
    return str(event["delta"]) if event["type"] == "transcript.text.delta" else None


def _span(event: dict[str, Any]) -> Length | Span | None:
    if "text" in event:
        return Span(event["text"], event["language"], event["start"], event["end"], event["is_final"])
    return Length(float(event["duration"])) if "duration" in event else None
