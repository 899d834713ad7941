"""A client of `/v1/jobs`, for an event loop: a recording is handed over once, and asked about from then on.

async with AsyncJobClient("http://127.0.0.1:8100") as client:
    job = await client.submit("meeting.mp4", SubtitleOptions())
    async for status in client.watch(job.id):
        print(status.done_s, status.duration_s)
    print((await client.result(job.id)).content)
    await client.delete(job.id)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import httpx

from asr_server.client import exchange
from asr_server.client.exchange import FileError, Recording, Response
from asr_server.client.options import Options
from asr_server.client.sse import EventStream

_ROUTE = "/v1/jobs"


class JobState(StrEnum):
    """Where a job is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job stands. `done_s`: seconds of the recording that are text; `duration_s`: how long it is, None while
    that is unknown. `error`: why it failed."""

    id: str
    state: JobState
    done_s: float = 0.0
    duration_s: float | None = None
    error: FileError | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in (JobState.SUCCEEDED, JobState.FAILED)


class AsyncJobClient(exchange.AsyncConnection):
    """Errors are `FileError`; `ServerUnreachable` among them. Leaving it stops no job."""

    async def submit(self, recording: Recording, options: Options) -> JobStatus:
        """Hand the recording over; when this returns, the server has all of it."""
        with exchange.named_errors(), exchange.upload(recording) as file:
            fields = {**options.form, "task": options.task}
            return _status(_good(await self._http.post(_ROUTE, data=fields, files={"file": file})).json())

    async def status(self, identity: str) -> JobStatus:
        """How the job stands."""
        return _status((await self._ask("GET", identity)).json())

    async def watch(self, identity: str) -> AsyncGenerator[JobStatus, None]:
        """How the job stands, and again at every change, until it is over."""
        stream, last = EventStream(), None
        with exchange.named_errors():
            async with self._http.stream("GET", f"{_path(identity)}/events") as answer:
                if not answer.is_success:
                    await answer.aread()
                    raise exchange.refusal(answer)
                async for chunk in answer.aiter_bytes():
                    for last in exchange.read(stream.feed(chunk), _status):
                        yield last
        if last is None or not last.over:
            await self.status(identity)  # raises where the job was removed meanwhile
            raise FileError("connection_lost", "The server's answer broke off.")

    async def result(self, identity: str) -> Response:
        """What the job made."""
        answer = await self._ask("GET", identity, "/result")
        return exchange.made(answer.content, answer.headers)

    async def delete(self, identity: str) -> None:
        """Stop the job if it runs, and remove it with its recording and its result."""
        await self._ask("DELETE", identity)

    async def _ask(self, method: str, identity: str, what: str = "") -> httpx.Response:
        with exchange.named_errors():
            return _good(await self._http.request(method, f"{_path(identity)}{what}"))


def _path(identity: str) -> str:
    return f"{_ROUTE}/{quote(identity, safe='')}"


def _good(answer: httpx.Response) -> httpx.Response:
    if not answer.is_success:
        raise exchange.refusal(answer)
    return answer


def _status(body: dict[str, Any]) -> JobStatus:
    progress, error = body["progress"], body["error"]
    return JobStatus(
        id=str(body["id"]),
        state=JobState(body["status"]),
        done_s=float(progress["done_s"]),
        duration_s=progress["duration_s"],
        error=FileError(str(error["code"]), str(error["message"])) if error else None,
    )
