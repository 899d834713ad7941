"""One job of the engine thread as the event loop sees it: its text as it comes, then its result. Not a queue."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future

from asr_server.engine.protocol import Hypothesis, Tokens
from asr_server.scheduling.job import Job
from asr_server.scheduling.thread import EngineThread


class EngineStream:
    """Submits a job and carries its deltas over to the event loop. Raises what `EngineThread.submit` raises."""

    def __init__(self, engine: EngineThread, job: Job) -> None:
        loop = asyncio.get_running_loop()
        self._job = job
        self._texts: deque[str] = deque()
        self._news = asyncio.Event()
        self.begun = asyncio.Event()  # the first text has come, or the end

        def on_delta(tokens: Tokens) -> None:
            if tokens.text:
                loop.call_soon_threadsafe(self._add, tokens.text)

        job.on_delta = on_delta
        thread_side: Future[Hypothesis] = engine.submit(job)
        self._future = asyncio.wrap_future(thread_side)
        # Called on the loop after every delta that came before the result.
        self._future.add_done_callback(self._ended)

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self.begun.set()
        self._news.set()

    def _ended(self, _: asyncio.Future[Hypothesis]) -> None:
        self.begun.set()
        self._news.set()
        # The job holds this object by it, and this object the job with its audio: memory would wait for the collector.
        self._job.on_delta = None

    async def pieces(self, deadline_s: float) -> AsyncGenerator[str, None]:
        """The text as it comes, until the job is done. Raises `TimeoutError` at `deadline_s` (monotonic)."""
        while True:
            while self._texts:
                yield self._texts.popleft()
            if self._future.done():
                return
            self._news.clear()
            async with asyncio.timeout(deadline_s - time.monotonic()):
                await self._news.wait()

    async def result(self) -> Hypothesis:
        """The job's result, or its error."""
        return await self._future

    def times_s(self) -> tuple[float, float, float]:
        """How long the finished job waited for its turn, how long it ran, and how long it waited for a load."""
        job = self._job
        return job.started_s - job.queued_s - job.load_s, job.ended_s - job.started_s, job.load_s

    def cancel(self) -> None:
        """Leave. A job that is done already stays so, and an error that nobody asked for is not reported as lost."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()
