"""Uploads over bare connections: sent in parts, at the caller's pace, and left in the middle."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

_BOUNDARY = b"a-boundary"
MEDIA_TYPE = f"multipart/form-data; boundary={_BOUNDARY.decode()}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and its time (`loop.time()`). `body` is the JSON of an answer that is JSON."""

    status: int
    headers: dict[str, str]
    body: dict
    at_s: float


def form(audio: bytes, **fields: str) -> bytes:
    """A multipart body with the recording last."""

    def part(name: bytes, value: bytes) -> bytes:
        return b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (_BOUNDARY, name, value)

    texts = b"".join(part(name.encode(), value.encode()) for name, value in {"model": "demo", **fields}.items())
    return texts + part(b'file"; filename="a.wav', audio) + b"--%b--\r\n" % _BOUNDARY


async def begun(server, body: bytes, first: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open connection over which so many bytes of a request went, by default all. One request a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    head += f"Connection: close\r\nContent-Type: {MEDIA_TYPE}\r\n\r\n"
    writer.write(head.encode() + body[:first])
    await writer.drain()
    return reader, writer


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    """The answer to a request whose body is JSON, with the connection's end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    at_s = asyncio.get_running_loop().time()
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    writer.close()
    return Answer(int(head[0].split()[1]), headers, body, at_s)


async def sent(server, body: bytes) -> Answer:
    """A whole request."""
    return await answer(*await begun(server, body))
