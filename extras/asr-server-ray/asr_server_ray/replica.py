"""An engine replica: the engines and their thread without the app, and the port at which it takes rows."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from loguru import logger

from asr_server import engine_core, feature_list
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError, EngineFailed
from asr_server.core.settings import Settings
from asr_server.engine.feature import Plan
from asr_server.engine.handed_out import joined
from asr_server.engine.protocol import AlignItem, Alignment, Hypothesis, Tokens, Utterance
from asr_server.engine_core import Watch
from asr_server.schedule.capacity import FreeCapacity
from asr_server.schedule.job import AnyJob, Job, Priority
from asr_server.schedule.ports import JobEnd, SchedulerObserver
from asr_server_ray.engine import MAX_ROWS
from asr_server_ray.messages import Answer, Described, ReplicaStats, RowCall
from asr_server_ray.row_server import RowServer

# A live session that has sent nothing for this long does not count as open; apps say sooner that one has ended.
_STREAM_OPEN_S = 60.0
_STREAMS_KEPT = 8_192
# The figures of an app's queue are forgotten after this time.
_SENDER_S = 10.0
_FAILED = 70  # EX_SOFTWARE of sysexits.h, as a server ends whose engine has failed


class EngineReplica:
    """Loads the models at once, and raises `ModelUnavailable` if that fails. Used from one event loop.

    `shares`: replicas that share one GPU.
    """

    def __init__(self, settings: Settings, shares: int = 1) -> None:
        self._plan = _shared(feature_list.resolve(settings), shares)
        self._settings = settings
        self._answered = _Answered()
        watch = Watch(self._answered, on_failure=_end_process)
        self._core = engine_core.build(settings, self._plan, watch, keeps_models=True)
        self._streams: OrderedDict[str, tuple[str, float]] = OrderedDict()  # who sends them, and when the last row came
        self._waiting_at: dict[str, tuple[float, float]] = {}
        self._server = RowServer(self.answers, MAX_ROWS)
        for name in self._core.engines:
            self._core.thread.load(name).result()

    async def listen(self, host: str) -> None:
        """Take rows at a free port of that address, which is published."""
        await self._server.listen(host)

    async def drain(self, timeout_s: float) -> None:
        """Take no more rows, and wait for those under way."""
        await self._server.drain(timeout_s)

    async def answers(self, call: RowCall) -> AsyncGenerator[Answer, None]:
        """Yield the tokens of a row if it asks for them, and its result or error. Closing it cancels the row."""
        self._note(call)
        job = _job(call, self._core.thread.request_clock.now_s() + self._settings.request_timeout)
        answer = _RowAnswer(job)
        try:
            answer.follow(self._core.thread.submit(job))
        except AsrError as error:
            yield error
            return
        try:
            async for tokens in answer.tokens():
                yield tokens
            yield await answer.outcome()
        finally:
            answer.cancel()

    async def describe(self) -> Described:
        """Return the plan and the figures of this replica."""
        return Described(self._plan, self._stats())

    async def end_streams(self, sender: str, streams: Sequence[str]) -> None:
        """Note that these live sessions of an app have ended."""
        for stream in streams:
            if self._streams.get(stream, ("", 0.0))[0] == sender:  # else it goes on at another app
                del self._streams[stream]

    def record_routing_stats(self) -> dict[str, Any]:
        """Return the figures by which the apps route rows."""
        return {"stats": self._stats()}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the figures by which the number of replicas is chosen."""
        free, now_s = self._free(), time.monotonic()
        waiting_s = sum(seconds for seconds, at_s in self._waiting_at.values() if now_s - at_s < _SENDER_S)
        return {
            "waiting_s": waiting_s + self._core.thread.snapshot().waiting_s,
            "audio_s_per_s": free.audio_s_per_s,
            "sessions": float(len(self._streams)),
            "streams": float(free.streams),
            "streams_measured": float(free.streams_measured),
        }

    def check_health(self) -> None:
        """Raise if this process should be ended: the engine's thread has ended or hangs."""
        snapshot = self._core.thread.snapshot()
        stuck = snapshot.busy and snapshot.heartbeat_age_s > self._settings.engine_hang_s and not snapshot.loading
        if snapshot.failure or not snapshot.alive or stuck:
            raise RuntimeError(snapshot.failure or "the engine thread does not move")

    def _stats(self) -> ReplicaStats:
        infos = {name: engine.info for name, engine in self._core.engines.items()}
        free = self._free()
        sessions = Counter(sender for sender, _ in self._streams.values())
        waiting_s = self._core.thread.snapshot().waiting_s
        return ReplicaStats(free, sessions, waiting_s, infos, self._server.address)

    def _free(self) -> FreeCapacity:
        oldest_s = time.monotonic() - _STREAM_OPEN_S
        while self._streams and next(iter(self._streams.values()))[1] < oldest_s:
            self._streams.popitem(last=False)
        self._core.streams.update(len(self._streams), self._answered.audio_s)
        return self._core.streams.free()

    def _note(self, call: RowCall) -> None:
        now_s = time.monotonic()
        self._waiting_at = {name: at for name, at in self._waiting_at.items() if now_s - at[1] < _SENDER_S}
        self._waiting_at[call.sender] = call.waiting_s, now_s
        if call.stream:
            self._streams[call.stream] = call.sender, now_s
            self._streams.move_to_end(call.stream)
            if len(self._streams) > _STREAMS_KEPT:
                self._streams.popitem(last=False)


class _Answered(SchedulerObserver):
    """Counts `audio_s`, the seconds of recordings that were transcribed."""

    def __init__(self) -> None:
        self.audio_s = 0.0

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """Note that a job ended."""
        if end is JobEnd.DONE and not job.priority.is_live and isinstance(value, Hypothesis):
            self.audio_s += job.cost_s


def _shared(resolved: Plan, shares: int) -> Plan:
    others = tuple(replace(other, shares=other.shares * shares) for other in resolved.others)
    return replace(resolved, shares=resolved.shares * shares, others=others)


def _job(call: RowCall, deadline_s: float) -> Job[Any]:
    """Return the job of a row. The app has ordered the rows; here live work goes first, finals before partials."""
    item = call.item
    is_partial = not isinstance(item, AlignItem) and item.session is not None and not item.last
    live = Priority.PARTIAL if is_partial else Priority.FINAL
    session = "" if isinstance(item, AlignItem) else item.session or ""
    return Job[Any](
        item,
        live if call.is_live else Priority.INTERACTIVE,
        len(item.audio) / SAMPLE_RATE,
        deadline_s,
        call.model,
        session=session,
    )


class _RowAnswer:
    """A job's tokens, where its row asks for them, and its end. Made on the event loop, which it stays on."""

    def __init__(self, job: Job[Any]) -> None:
        self._told: list[Tokens] = []
        self._changed = asyncio.Event()
        self._done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(job.item, Utterance) and job.item.stream:
            loop = asyncio.get_running_loop()

            def on_delta(delta: Any) -> None:
                loop.call_soon_threadsafe(self._tell, delta)

            job.on_delta = on_delta

    def follow(self, future: Future[Any]) -> None:
        """Follow a job that is queued. Its end comes after all of its tokens."""
        self._done = asyncio.wrap_future(future)
        self._done.add_done_callback(lambda _: self._changed.set())

    async def tokens(self) -> AsyncIterator[Tokens]:
        """Yield the tokens until the end, all at once that are there."""
        while self._told or not self._done.done():
            if not self._told:
                await self._changed.wait()
                self._changed.clear()
                continue
            told, self._told = self._told, []
            yield joined(told)

    async def outcome(self) -> Hypothesis | Alignment | AsrError:
        """Return the result, or the error of the row."""
        try:
            result: Hypothesis | Alignment = await self._done
        except AsrError as error:
            return error
        return result

    def cancel(self) -> None:
        """Take the row out, unless it is done."""
        self._done.cancel()

    def _tell(self, tokens: Tokens) -> None:
        self._told.append(tokens)
        self._changed.set()


def _end_process(error: EngineFailed) -> None:
    """End this process. Another replica is started in its place, and the rows are sent again."""
    logger.critical("the engine has failed, and the replica ends", reason=error.message)
    os._exit(_FAILED)
