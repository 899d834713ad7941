"""Uploads over bare connections: sent in parts, at the caller's pace, and left in the middle."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from E2Etest.drive.wire import post


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and its time (`loop.time()`). `body` is the JSON of an answer that is JSON."""

    status: int
    headers: dict[str, str]
    body: dict
    at_s: float


async def begun(server, body: bytes, first: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open connection over which so many bytes of a request went, by default all. One request a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
    writer.write(post(b"", length=len(body)) + body[:first])
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
    return await answer(*await begun(server, body))
