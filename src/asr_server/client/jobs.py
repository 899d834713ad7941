"""A client of `/v1/jobs`, for an event loop: submit a recording or a long text, follow the job, fetch the result.

async with AsyncJobClient("http://127.0.0.1:8100") as client:
    job = await client.submit("meeting.mp4", SubtitleRequest())
    async for status in client.watch(job.id):
        print(status.done_s, status.duration_s)
    print((await client.result(job.id)).content.decode())
    await client.delete(job.id)
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Unpack
from urllib.parse import quote

from asr_server.client import connection
from asr_server.client.connection import AsyncConnection, EventStream, FileError, Recording, ServerUnreachable
from asr_server.client.files import form
from asr_server.client.speech import SpeechFields, json_request
from asr_server.recordings.requests import Request, ResponseFormat, Result

_ROUTE, _SPEECH_ROUTE = "/v1/jobs", "/v1/audio/speech/jobs"
_PAUSES_S = (1.0, 2.0, 4.0)  # before each further attempt
_LOST = "connection_lost"


class JobState(StrEnum):
    """The states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job."""

    id: str
    state: JobState
    done_s: float = 0.0  # seconds of the recording transcribed so far, or of speech made so far
    duration_s: float | None = None  # the total length, None while unknown; for speech an estimate until the end
    error: FileError | None = None  # why the job failed

    @property
    def is_over(self) -> bool:
        return self.state not in (JobState.QUEUED, JobState.RUNNING)


class AsyncJobClient(AsyncConnection):
    """Submits and follows jobs. All errors are `FileError`. Jobs continue when the client is closed."""

    async def submit(self, recording: Recording, request: Request, *, key: str = "") -> JobStatus:
        """Send the recording and create a job. When this returns, the server has the whole recording.

        `key`: the `Idempotency-Key`, by default a random one. The server makes only one job for a key: if the
        connection breaks before the answer, the recording is sent again, unless it is a pipe.
        """
        fields = {**form(request), "task": request.task}
        with connection.upload(recording) as part:
            # httpx sends a file from its beginning each time.
            again = hasattr(part[1], "seekable") and part[1].seekable()
            return await _accepted(
                lambda headers: self._state("POST", _ROUTE, data=fields, files={"file": part}, headers=headers),
                key,
                again=again,
            )

    async def submit_text(
        self, text: str | Sequence[tuple[str, str]], *, key: str = "", **fields: Unpack[SpeechFields]
    ) -> JobStatus:
        """Create a job that speaks a text, or chapters, each with a title and a text. `key`: as in `submit`."""
        if isinstance(text, str):
            body: dict[str, Any] = {"input": text}
        else:
            body = {"chapters": [{"title": title, "text": content} for title, content in text]}
        sent = json_request(body, fields)
        own = sent.pop("headers", {})
        return await _accepted(
            lambda headers: self._state("POST", _SPEECH_ROUTE, **sent, headers={**own, **headers}), key
        )

    async def status(self, identity: str) -> JobStatus:
        return await self._state("GET", _path(identity))

    async def watch(self, identity: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the state of the job now, and again at every change, until it is over."""
        stream, last = EventStream(), None
        async with self.answer("GET", f"{_path(identity)}/events") as answer:
            async for chunk in answer.aiter_bytes():
                for last in map(_status, stream.feed(chunk)):
                    yield last
        if last is None or not last.is_over:
            await self.status(identity)  # raises if the job has been removed
            raise FileError("connection_lost", "The server's answer broke off.")

    async def result(self, identity: str, response_format: ResponseFormat | None = None) -> Result:
        """Return the result of a job that has succeeded; for a recording, in any format."""
        query = "" if response_format is None else f"?response_format={response_format}"
        async with self.answer("GET", f"{_path(identity)}/result{query}") as answer:
            return connection.result(await answer.aread(), answer.headers)

    async def stream_result(self, identity: str) -> AsyncGenerator[bytes, None]:
        """Yield the result of a job that has succeeded, in pieces: speech may be larger than the memory."""
        async with self.answer("GET", f"{_path(identity)}/result") as answer:
            async for piece in answer.aiter_bytes():
                yield piece

    async def cancel(self, identity: str) -> JobStatus:
        """Cancel the job if it waits or runs, and return its state."""
        return await self._state("POST", f"{_path(identity)}/cancel")

    async def delete(self, identity: str) -> None:
        """Stop the job if it runs, and remove it with its recording and its result."""
        async with self.answer("DELETE", _path(identity)):
            pass

    async def _state(self, method: str, route: str, **content: Any) -> JobStatus:
        async with self.answer(method, route, **content) as answer:
            return _status(json.loads(await answer.aread()))


async def _accepted(
    post: Callable[[dict[str, str]], Awaitable[JobStatus]], key: str, *, again: bool = True
) -> JobStatus:
    """Return the job that `post` creates. `post` is called again with the same key if its answer was lost."""
    headers = {"Idempotency-Key": key or secrets.token_urlsafe(18)}
    pauses_s, was_lost = iter(_PAUSES_S if again else ()), False
    while True:
        try:
            return await post(headers)
        except FileError as error:
            # A server that cannot be reached at first has received nothing; after a lost answer it may be restarting.
            was_lost |= error.code == _LOST
            waits = was_lost and (error.code == _LOST or isinstance(error, ServerUnreachable))
            if not waits or (pause_s := next(pauses_s, None)) is None:
                raise
            await asyncio.sleep(pause_s)


def _path(identity: str) -> str:
    return f"{_ROUTE}/{quote(identity, safe='')}"


def _status(body: dict[str, Any]) -> JobStatus:
    progress, error = body["progress"], body["error"]
    return JobStatus(
        id=str(body["id"]),
        state=JobState(body["status"]),
        done_s=float(progress["done_s"]),
        duration_s=progress["duration_s"],
        error=FileError(str(error["code"]), str(error["message"])) if error else None,
    )
