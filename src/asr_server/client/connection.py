"""The common part of the HTTP clients: the connection, uploads from disk, errors, events of a stream."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Self

import httpx

from asr_server.recordings.requests import Result

_CONNECT_TIMEOUT_S = 10.0
# No limit for answers: the server limits how long a recording may take.
_TIMEOUT = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
# The proxies of the environment are not used for these hosts, this machine. Beside each is httpx's name for it.
LOOPBACK = {"127.0.0.1": "all://127.0.0.1", "localhost": "all://localhost", "::1": "all://[::1]"}

Recording = str | Path | BinaryIO
# One TLS context for all clients: reading the certificates takes longer than many requests.
_tls = cache(httpx.create_ssl_context)


class FileError(Exception):
    """A request failed. `code` is stable, `message` is for people.

    `retry_after_s`: seconds after which the server would accept the same request; None if it did not say so.
    """

    def __init__(self, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class ServerUnreachable(FileError):
    """The server cannot be reached at the address."""


def client_options(server: str, key: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Return the arguments of httpx's clients for this server. `key`: "" for a server without keys. `timeout_s`: as in
    `Connection`."""
    return {
        "base_url": server,
        "timeout": _TIMEOUT if timeout_s is None else timeout_s,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "mounts": dict.fromkeys(LOOPBACK.values()),
        "verify": _tls(),
    }


class Connection:
    """The base of the blocking clients: a context manager that closes its connection at the end.

    `key`: for a server that has keys. `timeout_s`: the longest time without any answer from the server; None leaves all
    limits to the server.
    """

    def __init__(self, server: str = "http://127.0.0.1:8100", *, key: str = "", timeout_s: float | None = None) -> None:
        self._http = httpx.Client(**client_options(server, key, timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The server cancels the request that is running on it."""
        self._http.close()

    @contextmanager
    def answer(self, method: str, route: str, **content: Any) -> Iterator[httpx.Response]:
        """Yield a successful answer, whose body has not been read. Raises `FileError` for any other."""
        with map_errors(), self._http.stream(method, route, **content) as answer:
            if not answer.is_success:
                answer.read()
                raise error_of(answer)
            yield answer


class AsyncConnection:
    """The base of the clients for an event loop: an async context manager that closes its connections at the end.

    `key`, `timeout_s`: as in `Connection`. `socket`: the path of a Unix socket on which the server listens; the host of
    `server` is then only sent as the `Host` header.
    """

    def __init__(
        self,
        server: str = "http://127.0.0.1:8100",
        *,
        key: str = "",
        socket: str | Path | None = None,
        timeout_s: float | None = None,
    ) -> None:
        options = client_options(server, key, timeout_s)
        if socket is not None:
            del options["mounts"]
            options["transport"] = httpx.AsyncHTTPTransport(uds=str(socket))
        self._http = httpx.AsyncClient(**options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. The server cancels the requests that are running on them."""
        await self._http.aclose()

    @asynccontextmanager
    async def answer(self, method: str, route: str, **content: Any) -> AsyncIterator[httpx.Response]:
        """Yield a successful answer, whose body has not been read. Raises `FileError` for any other."""
        with map_errors():
            async with self._http.stream(method, route, **content) as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer)
                yield answer


def result(content: bytes, headers: Mapping[str, str]) -> Result:
    """Return the body of a successful answer, and what its headers say about it."""
    untranslated, duration = headers.get("X-Untranslated", ""), headers.get("X-Audio-Duration", "")
    return Result(
        content,
        media_type=headers.get("Content-Type", ""),
        time_source=headers.get("X-Subtitle-Timing"),
        untranslated=int(untranslated) if untranslated.isdecimal() else None,
        translation_error=headers.get("X-Translation-Error"),
        duration_s=float(duration) if duration.replace(".", "", 1).isdecimal() else None,
    )


@contextmanager
def upload(recording: Recording) -> Iterator[tuple[str, Any]]:
    """Yield the file name and the open file for the form. A file that the caller opened stays open."""
    if isinstance(recording, str | Path):
        with Path(recording).open("rb") as file, upload(file) as part:
            yield part
    else:
        try:
            has_length = stat.S_ISREG(os.fstat(recording.fileno()).st_mode)
        except (AttributeError, OSError):  # no file descriptor: httpx finds the length of a file in memory by seeking
            has_length = True
        # A pipe's descriptor is hidden: httpx would take the size of its inode, 0, as the length of the upload.
        sent = recording if has_length else SimpleNamespace(read=recording.read)
        # A form part without a name is not a file. The server goes by the content, so any name will do.
        yield "recording", sent


@contextmanager
def map_errors() -> Iterator[None]:
    """Raise httpx's errors as `ServerUnreachable` or `FileError`."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ServerUnreachable("server_unreachable", f"No server answers ({error}).") from error
    except httpx.TransportError as error:
        raise FileError("connection_lost", f"The connection broke ({type(error).__name__}).") from error


def error_of(answer: httpx.Response) -> FileError:
    """Return the error that an answer other than 2xx states. Its body has been read."""
    try:
        stated = answer.json()["error"]
        code, message = str(stated["code"] or "error"), str(stated["message"])
    except (ValueError, KeyError, TypeError):  # a proxy, or another server at this address
        code, message = f"http_{answer.status_code}", f"The server answered {answer.status_code} without a reason."
    wait_s = answer.headers.get("Retry-After", "")
    return FileError(code, message, retry_after_s=float(wait_s) if wait_s.isdecimal() else None)


_DATA = b"data: "
_OPENAI_END = b"[DONE]"


class EventStream:
    """An incremental decoder. `ended` becomes True with the server's last event; a stream without it was cut off."""

    def __init__(self) -> None:
        self._partial = b""
        self.ended = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that `chunk` completes. Comments, which only keep a connection open, are skipped. Raises
        `FileError` for an event that states an error."""
        *frames, self._partial = (self._partial + chunk).split(b"\n\n")
        for frame in frames:
            if not frame.startswith(_DATA):
                continue
            body = frame.removeprefix(_DATA)
            event: dict[str, Any] = {"done": True} if body == _OPENAI_END else json.loads(body)
            if event.get("done"):
                self.ended = True
            elif event.keys() == {"error"}:
                raise FileError(str(event["error"]["code"]), str(event["error"]["message"]))
            else:
                yield event

    def check_ended(self) -> None:
        """Raise `FileError` if the stream stopped before its last event."""
        if not self.ended:
            raise FileError("connection_lost", "The server's answer broke off.")
