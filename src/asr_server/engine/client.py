"""The engine thread as coroutines: transcribe, stream and align, each with its own result type.

The only way from the event loop to the engine. Everything here runs on the event loop; the engine thread reaches it
only through futures and `call_soon_threadsafe`, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, DeadlineExceeded, EngineFailed, ShuttingDown
from asr_server.engine.protocol import (
    DEFAULT_TRAITS,
    AlignItem,
    Alignment,
    EngineTraits,
    Hypothesis,
    Tokens,
    Utterance,
    Written,
)
from asr_server.schedule.job import Job, Priority

if TYPE_CHECKING:
    from asr_server.schedule.job import RequestClock
    from asr_server.schedule.thread import Scheduler

# The shortest pause between two checks of a deadline, which may stay near for as long as its clock stands still.
_CHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class Transcription:
    """The engine's answer for the samples [start, end) of an utterance, and where its time went, in seconds."""

    hypothesis: Hypothesis
    queue_s: float  # the wait for a free slot, without `load_s`
    infer_s: float  # from the row's first step to its last
    load_s: float  # the wait for the model to be loaded
    end: int
    start: int = 0  # more than 0 if the audio was transcribed again in parts
    temperature: float = 0.0  # used for this answer


class EngineClient:
    """Submits jobs for one model to the engine thread. Every method raises `ShuttingDown` when no new work is taken.

    `model`: its name on the engine thread. `drafting`: the drafts of a smaller model, which this one verifies, or None.
    `deadline_s` is a time of `clock`. When it passes, `transcribe` cancels the job and raises `DeadlineExceeded`.
    """

    def __init__(
        self,
        thread: Scheduler,
        traits: EngineTraits = DEFAULT_TRAITS,
        model: str = "",
        drafting: ModelDrafts | None = None,
    ) -> None:
        self.traits = traits
        self.clock = thread.request_clock
        self._thread = thread
        self._model = model
        self._drafting = drafting

    def lease(self, *, live: bool = False) -> AbstractContextManager[None]:
        """Keep the model loaded until the block ends. `live`: for a live session."""
        return self._thread.lease(live=live, model=self._model)

    def load(self) -> None:
        """Start to load the model, unless it is loaded. If that fails, the next job reports the error."""
        self._thread.load(self._model)

    async def transcribe(
        self, utterance: Utterance, *, priority: Priority, deadline_s: float | Callable[[], float] | None = None
    ) -> Transcription:
        """Return the engine's answer. Raises `AsrError`. Cancelling the task cancels the job."""
        try:
            async with until(self.clock, deadline_s):  # a timeout cancels the wait, and so the job
                return await self.stream(utterance, priority=priority, deadline_s=deadline_s).result()
        except TimeoutError:
            raise DeadlineExceeded("The time limit of the request passed while it was being worked on.") from None

    def stream(
        self, utterance: Utterance, *, priority: Priority, deadline_s: float | Callable[[], float] | None = None
    ) -> EngineStream:
        """Queue a job at once and return its text as it arrives. There is text only if `utterance.stream` is set."""
        job = Job[Hypothesis](
            utterance, priority, _seconds(utterance), deadline_s, self._model, session=utterance.session or ""
        )
        drafting = self._drafting
        return EngineStream(self._thread, job, drafting if drafting and drafting.helps(utterance) else None)

    async def align(self, item: AlignItem, *, priority: Priority) -> Alignment:
        """Return the times of the words. Raises `AsrError`. Cancelling the task cancels the job."""
        job = Job[Alignment](item, priority, _seconds(item), model=self._model)
        return await asyncio.wrap_future(self._thread.submit(job))


class ModelDrafts:
    """Makes drafts for another model with a smaller one, and counts the saved steps. Used on the event loop.

    A draft saves a step for each of its tokens that proves right, and changes no answer; see `Utterance.draft`.
    `client`: the client of the smaller model.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.spans = 0  # how many answers had a draft
        self._steps = self._saved = 0

    def helps(self, utterance: Utterance) -> bool:
        """Return True if a draft may help. It cannot if the utterance already has one, is sampled or is a partial, or
        if the smaller model does not know its language or takes no audio of its length."""
        traits = self._client.traits
        has_draft = bool(utterance.draft or utterance.draft_text)
        is_partial = utterance.session is not None and not utterance.last
        known = utterance.language is None or utterance.language in traits.languages
        fits = len(utterance.audio) <= traits.max_audio_s * SAMPLE_RATE
        return known and fits and not (has_draft or is_partial or utterance.temperature > 0)

    async def draft(self, job: Job[Hypothesis], utterance: Utterance) -> Transcription | None:
        """Return the smaller model's transcript, made with the priority of `job`; None if it fails, since a draft is
        optional.

        Raises `ShuttingDown` and `EngineFailed`.
        """
        asked = replace(utterance, stream=False, session=None, last=False, prefix=(), prefix_text=None)
        try:
            return await self._client.transcribe(asked, priority=job.priority, deadline_s=job.deadline_s)
        except (ShuttingDown, EngineFailed):
            raise
        except AsrError as error:
            logger.warning("no draft", code=error.code, reason=error.message)
            return None

    def note(self, answer: Hypothesis) -> None:
        """Count the steps that a draft saved. Without it, the answer takes one for each token, and one for its end."""
        self.spans += 1
        self._steps += len(answer.ids) + 1
        self._saved += len(answer.ids) + 1 - answer.passes

    @property
    def saved(self) -> float:
        return self._saved / max(1, self._steps)


D = TypeVar("D")
R = TypeVar("R")


class JobStream(Generic[D, R]):
    """A job under way: an async iterator over its output, then its `answer`.

    The iterator enforces the deadline with `TimeoutError`. The engine cannot: it may hang in a step.
    """

    def __init__(self, thread: Scheduler, job: Job[R]) -> None:
        self._thread, self._job = thread, job
        self._loop = asyncio.get_running_loop()
        self._ready: deque[D] = deque()
        self._changed = asyncio.Event()
        self.begun = asyncio.Event()  # set when the first item has arrived, or at the end
        job.on_delta = self._on_delta
        self._future = self._submit()
        # The result also arrives through `call_soon_threadsafe`, so this callback runs after `_add` of every delta.
        self._future.add_done_callback(self._on_done)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        while not self._ready:
            if self._future.done():
                raise StopAsyncIteration
            self._changed.clear()
            async with until(self._thread.request_clock, self._job.deadline_s):
                await self._changed.wait()
        return self._ready.popleft()

    async def answer(self) -> R:
        return await self._future

    def cancel(self) -> None:
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()  # marks the error as retrieved, so that asyncio does not log it

    def _submit(self) -> asyncio.Future[R]:
        return asyncio.wrap_future(self._thread.submit(self._job))

    def _on_delta(self, delta: Any) -> None:  # on the engine thread
        self._loop.call_soon_threadsafe(self._add, delta)

    def _add(self, item: D) -> None:
        self._ready.append(item)
        self.begun.set()
        self._changed.set()

    def _on_done(self, _: asyncio.Future[R]) -> None:
        self.begun.set()
        self._changed.set()
        # Break a cycle: `on_delta` refers to this stream, and this stream to the job with its audio. The memory is then
        # freed with the last reference and not by a later garbage collection.
        self._job.on_delta = None


class EngineStream(JobStream[str, Hypothesis]):
    """A transcription under way: its text, then its `result`. Made by `EngineClient.stream`.

    With `drafting`, the job is queued after its draft and keeps the arrival time of the draft.
    """

    def __init__(self, thread: Scheduler, job: Job[Hypothesis], drafting: ModelDrafts | None = None) -> None:
        self._drafting, self._draft_s = drafting, 0.0
        super().__init__(thread, job)

    def _submit(self) -> asyncio.Future[Hypothesis]:
        return super()._submit() if self._drafting is None else asyncio.ensure_future(self._drafted(self._drafting))

    def _on_delta(self, delta: object) -> None:
        if isinstance(delta, Tokens) and delta.text:
            super()._on_delta(delta.text)

    async def result(self) -> Transcription:
        """Return the whole answer. Raises `AsrError`."""
        hypothesis, job = await self.answer(), self._job
        utterance = job.item
        assert isinstance(utterance, Utterance)
        return Transcription(
            hypothesis,
            queue_s=job.started_s - job.queued_s - job.load_s - self._draft_s,
            infer_s=job.ended_s - job.started_s + self._draft_s,
            load_s=job.load_s,
            end=len(utterance.audio),
            temperature=utterance.temperature,
        )

    async def _drafted(self, drafting: ModelDrafts) -> Hypothesis:
        job, utterance = self._job, self._job.item
        assert isinstance(utterance, Utterance)
        job.queued_s = self._thread.clock()
        draft = await drafting.draft(job, utterance)
        if draft is None:
            return await super()._submit()
        self._draft_s = draft.infer_s
        said = draft.hypothesis
        job.item = replace(utterance, draft_text=Written(said.text, said.language))
        answer = await super()._submit()
        drafting.note(answer)
        return answer


@asynccontextmanager
async def until(clock: RequestClock, deadline_s: float | Callable[[], float] | None) -> AsyncIterator[None]:
    """Raise `TimeoutError` if the block is not left by `deadline_s`: `asyncio.timeout_at` with the time of `clock`.

    `deadline_s` is None for no limit, or a function if the deadline may move. It may only move to a later time.
    """
    if deadline_s is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.Handle
    async with asyncio.timeout(None) as scope:

        def check() -> None:
            nonlocal timer
            left_s = (deadline_s() if callable(deadline_s) else deadline_s) - clock.now_s()
            if left_s <= 0:
                scope.reschedule(loop.time())
            else:
                timer = loop.call_later(max(left_s, _CHECK_S), check)

        timer = loop.call_soon(check)
        try:
            yield
        finally:
            timer.cancel()


def _seconds(item: Utterance | AlignItem) -> float:
    return len(item.audio) / SAMPLE_RATE
