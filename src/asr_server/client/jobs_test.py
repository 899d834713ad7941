"""The client of jobs, with a server that loses answers."""

import json
import os

import pytest

from asr_server.client import jobs
from asr_server.client.conftest import answering
from asr_server.client.connection import FileError, ServerUnreachable
from asr_server.client.jobs import AsyncJobClient
from asr_server.recordings.requests import TranscriptionRequest

JOB = {"id": "job_1", "status": "queued", "progress": {"done_s": 0.0, "duration_s": None}, "error": None}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(jobs, "_PAUSES_S", (0.01, 0.01, 0.01))


def _losing(answers):
    """A server that closes the connection in place of so many answers."""
    return answering(json.dumps(JOB).encode(), 202, before=[None] * answers)


def _keys(seen):
    return [headers["Idempotency-Key"] for headers in seen.headers]


@pytest.mark.parametrize(("kind", "least_bytes"), [("path", 100_000), ("file", 99_000), ("text", 0)])
async def test_what_is_sent_again_has_the_same_key(tmp_path, kind, least_bytes):
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

    with _losing(2) as (base, seen):
        async with AsyncJobClient(base) as client:
            assert (await send(client)).id == "job_1"
            assert (len(seen), len(set(_keys(seen)))) == (3, 1)
            assert min(map(len, seen)) > least_bytes
            assert kind != "text" or len(set(seen)) == 1
            await send(client)
            assert len(set(_keys(seen))) == 2


async def test_a_pipe_is_sent_once():
    """What was read of it is gone, so the error is raised. A key of the caller is sent as it is."""
    read, write = os.pipe()
    os.write(write, b"RIFF")
    os.close(write)
    with _losing(1) as (base, seen), os.fdopen(read, "rb") as pipe:
        async with AsyncJobClient(base) as client:
            with pytest.raises(FileError) as lost:
                await client.submit(pipe, TranscriptionRequest(), key="mine")
    assert lost.value.code == "connection_lost"
    assert _keys(seen) == ["mine"]


async def test_it_gives_up():
    """After three further attempts, and at once where no server answers."""
    with _losing(9) as (base, seen):
        async with AsyncJobClient(base) as client:
            with pytest.raises(FileError):
                await client.submit_text("Hello.")
    assert len(seen) == 4
    async with AsyncJobClient(base) as client:
        with pytest.raises(ServerUnreachable):
            await client.submit_text("Hello.")


async def test_a_result_may_be_read_in_pieces():
    """Speech may be larger than the memory."""
    audio = bytes(range(256)) * 1_000
    with answering(audio) as (base, _):
        async with AsyncJobClient(base) as client:
            pieces = [piece async for piece in client.stream_result("job_1")]
    assert len(pieces) > 1
    assert b"".join(pieces) == audio
