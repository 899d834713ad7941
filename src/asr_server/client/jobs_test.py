"""The client of jobs, with a server that loses answers."""

import asyncio
import json
import os
from contextlib import closing, suppress

import pytest

from asr_server.client import jobs
from asr_server.client.connection import FileError, ServerUnreachable
from asr_server.client.jobs import AsyncJobClient
from asr_server.recordings.requests import TranscriptionRequest

JOB = {"id": "job_1", "status": "queued", "progress": {"done_s": 0.0, "duration_s": None}, "error": None}


class LosingServer:
    """Reads requests whole; closes the connection in place of the first answers, as many as `loses`."""

    def __init__(self, loses):
        self.loses, self.keys, self.sizes = loses, [], []

    async def __call__(self, reader, writer):
        with suppress(ConnectionError), closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
            if "content-length" in headers:
                body = await reader.readexactly(int(headers["content-length"]))
            else:
                body = await reader.readuntil(b"\r\n0\r\n\r\n")
            self.keys.append(headers["idempotency-key"])
            self.sizes.append(len(body))
            if len(self.keys) > self.loses:
                answer = json.dumps(JOB).encode()
                writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(jobs, "_PAUSES_S", (0.01, 0.01, 0.01))


async def _sent(server, send):
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with AsyncJobClient(f"http://127.0.0.1:{port}") as client:
            return await send(client)


@pytest.mark.parametrize("kind", ["path", "file", "text"])
async def test_what_is_sent_again_has_the_same_key(tmp_path, kind):
    """The whole recording, or the text, once more after each lost answer; another call has another key."""
    recording = tmp_path / "a.wav"
    recording.write_bytes(bytes(100_000))

    async def send(client):
        if kind == "text":
            return await client.submit_text("Hello.", voice="nova")
        if kind == "path":
            return await client.submit(recording, TranscriptionRequest())
        with recording.open("rb") as file:
            file.seek(1_000)
            return await client.submit(file, TranscriptionRequest())

    server = LosingServer(2)
    assert (await _sent(server, send)).id == "job_1"
    assert len(set(server.keys)) == 1
    assert len(server.sizes) == 3
    assert len(set(server.sizes)) == 1 or kind != "text"
    assert kind == "text" or min(server.sizes) > (100_000 if kind == "path" else 99_000)
    await _sent(server, send)
    assert len(set(server.keys)) == 2


async def test_a_pipe_is_sent_once():
    """What was read of it is gone, so the error is raised. A key of the caller is sent as it is."""
    server = LosingServer(1)
    read, write = os.pipe()
    os.write(write, b"RIFF")
    os.close(write)
    with os.fdopen(read, "rb") as pipe, pytest.raises(FileError) as lost:
        await _sent(server, lambda client: client.submit(pipe, TranscriptionRequest(), key="mine"))
    assert lost.value.code == "connection_lost"
    assert server.keys == ["mine"]


async def test_it_gives_up():
    """After three further attempts, and at once where no server answers."""
    server = LosingServer(9)
    with pytest.raises(FileError):
        await _sent(server, lambda client: client.submit_text("Hello."))
    assert len(server.keys) == 4
    async with AsyncJobClient("http://127.0.0.1:1") as client:
        with pytest.raises(ServerUnreachable):
            await client.submit_text("Hello.")
