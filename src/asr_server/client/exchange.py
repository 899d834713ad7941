"""What the clients share of HTTP: uploads from disk, errors by name, the key, server-sent events. Knows no route."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import httpx

from asr_server.client.sse import EventStream

_CONNECT_TIMEOUT_S = 10.0
# None for answers: how long a recording may take is the server's to limit, and it does.
_TIMEOUT = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
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
class Response:
    """A whole answer. `timing`: where the times of subtitles come from (aligned, estimated, mixed), "" for what has
    none; `untranslated`: how many segments or cues stayed in the source language."""

    content: str
    timing: str = ""
    untranslated: int = 0


def made(content: bytes, headers: Mapping[str, str]) -> Response:
    """A body and what the server said beside it."""
    kept = headers.get("X-Untranslated", "")
    return Response(content.decode(), headers.get("X-Subtitle-Timing", ""), int(kept) if kept.isdigit() else 0)


def place(server: str, key: str) -> dict[str, Any]:
    """httpx's arguments for a client of this server; `key`: "" for one without keys."""
    return {
        "base_url": server,
        "timeout": _TIMEOUT,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "mounts": dict.fromkeys(_LOOPBACK),
    }


class AsyncConnection:
    """What the clients for an event loop have in common: connections that end with the block. `key`: for servers with
    keys."""

    def __init__(self, server: str = "http://127.0.0.1:8100", *, key: str = "") -> None:
        self._http = httpx.AsyncClient(**place(server, key))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the server drops what was under way on them."""
        await self._http.aclose()


@contextmanager
def upload(recording: Recording) -> Iterator[tuple[str, Any]]:
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
def named_errors() -> Iterator[None]:
    """httpx's many errors as the two that matter to a caller."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ServerUnreachable("server_unreachable", f"No server answers ({error}).") from error
    except httpx.TransportError as error:
        raise FileError("connection_lost", f"The connection broke ({type(error).__name__}).") from error


def refusal(answer: httpx.Response) -> FileError:
    """The error of an answer that was read and is none of the good ones."""
    try:
        told = answer.json()["error"]
        code, message = str(told["code"] or "error"), str(told["message"])
    except (ValueError, KeyError, TypeError):  # something else than our server stands at this address, or before it
        code, message = f"http_{answer.status_code}", f"The server answered {answer.status_code} without a reason."
    wait_s = answer.headers.get("Retry-After", "")
    return FileError(code, message, retry_after_s=float(wait_s) if wait_s.isdigit() else None)


def read(events: list[dict[str, Any]], item_of: Callable[[dict[str, Any]], T | None]) -> Iterator[T]:
    """The items in events; raises the error that is told among them."""
    for event in events:
        if event.keys() == {"error"}:
            raise FileError(str(event["error"]["code"]), str(event["error"]["message"]))
        item = item_of(event)
        if item is not None:
            yield item


def check_ended(stream: EventStream) -> None:
    """Raise where the stream stopped before its last event."""
    if not stream.ended:
        raise FileError("connection_lost", "The server's answer broke off.")
