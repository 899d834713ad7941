"""What do live sessions and recordings cost each other? Both in one engine thread, sessions at the speed of speech.

On random weights of the 0.6B's shape one speaker beside eight spans of 30 s; on the demonstration model, which is small
enough for so many, 30 speakers beside recordings without end. Audio does not pass a socket; all behind it is the
server's own. Answers are forced.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asr_server import feature_list
from asr_server.app import Machinery, Watch, machinery
from asr_server.core import settings
from asr_server.engine import capabilities
from asr_server.engine.protocol import Utterance
from asr_server.live.inference import Engines
from asr_server.live.machine.events import Audio
from asr_server.live.options import LiveSessionOptions
from asr_server.live.sessions import LiveSessions
from asr_server.schedule.job import AnyJob, Priority
from asr_server.schedule.ports import JobEnd, SchedulerObserver
from tools.bench import engines
from tools.bench.engines import percentiles
from tools.training.released_layout import random_checkpoint

SPANS, SPEAKERS = 8, 30
CHUNK_S = 0.1
ROUNDS = 2
LONG_S = 20.0


def _kind(job: AnyJob) -> str:
    if job.item is None or job.item.session is None:
        return "recording"
    return "final" if job.item.last else "partial"


@dataclass
class Ledger(SchedulerObserver):
    """The work of the engine thread in the last block of `counting`."""

    rows: dict[int, str] = field(default_factory=dict)
    row_steps: Counter[str] = field(default_factory=Counter)  # by kind
    waits_ms: dict[str, list[float]] = field(default_factory=dict)  # of jobs for a row
    totals_ms: dict[str, list[float]] = field(default_factory=dict)  # of jobs for their ends
    busy_s: float = 0.0  # in steps
    began_s: float = 0.0
    took_s: float = 0.0

    def started(self, job: AnyJob) -> None:
        """A job became a row."""
        self.rows[job.key] = _kind(job)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """A row left, or a job that never was one."""
        kind = self.rows.pop(job.key, None)
        if kind is None or end is not JobEnd.DONE:
            return
        self.waits_ms.setdefault(kind, []).append(1000 * (job.started_s - job.queued_s))
        self.totals_ms.setdefault(kind, []).append(1000 * (job.ended_s - job.queued_s))

    def stepped(self, rows: int, took_s: float) -> None:
        """One step of the batch."""
        self.row_steps.update(self.rows.values())
        self.busy_s += took_s

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the block, and nothing before it."""
        self.row_steps, self.waits_ms, self.totals_ms = Counter(), {}, {}
        self.busy_s, self.began_s = 0.0, time.monotonic()
        yield
        self.took_s = time.monotonic() - self.began_s

    def live(self) -> dict[str, object]:
        """Return the waits of live jobs for a row, and for their answer."""
        return {
            kind: {
                "count": len(self.waits_ms.get(kind, ())),
                "wait_ms": percentiles([self.waits_ms.get(kind, ())]),
                "answer_ms": percentiles([self.totals_ms.get(kind, ())]),
            }
            for kind in ("partial", "final")
        }


def measure() -> dict[str, object]:
    """Waits in ms, losses and shares. Takes four minutes on two cores."""
    with engines.forced_answers():
        return {
            "question": "Live sessions and recordings in one engine thread: what each costs the other",
            "0.6b_one_speaker_beside_eight_spans": asyncio.run(_beside_spans(str(random_checkpoint("0.6b")))),
            "demo_30_speakers_beside_recordings": asyncio.run(_many_speakers("demo")),
            "target": "partial p95 1 s with at most 10 % loss for the spans; recordings keep 20 % of the row-steps",
        }


async def _beside_spans(model_id: str) -> dict[str, object]:
    """Eight spans alone and beside one speaker, in turns; a speaker alone."""
    alone_s, beside_s, ledger = [], [], Ledger()
    async with _loaded(model_id, ledger) as (built, live):
        with ledger.counting():
            async with _speaking(live, 1):
                await asyncio.sleep(LONG_S)
        speaker_alone, share = ledger.live(), ledger.busy_s / ledger.took_s
        found = []
        for _ in range(ROUNDS):
            alone_s.append(await _spans_s(built))
            with ledger.counting():
                async with _speaking(live, 1):
                    await asyncio.sleep(1.0)
                    beside_s.append(await _spans_s(built))
            found.append(ledger.live())
    loss = 1 - statistics.median(alone_s) / statistics.median(beside_s)
    return {
        "speaker_alone": speaker_alone,
        "speaker_alone_share_of_the_engine": round(share, 2),
        "speaker_beside_spans": found,
        "spans_alone_s": [round(took_s, 1) for took_s in alone_s],
        "spans_beside_speaker_s": [round(took_s, 1) for took_s in beside_s],
        "loss_percent": round(100 * loss, 1),
    }


async def _many_speakers(model_id: str) -> dict[str, object]:
    """30 speakers beside recordings that never end, and both alone."""
    ledger = Ledger()
    async with _loaded(model_id, ledger) as (built, live):

        async def recorded(speakers: int, callers: int) -> float:
            """Row-steps of recordings in a second."""
            with ledger.counting():
                async with _speaking(live, speakers), _endless(built, callers):
                    await asyncio.sleep(LONG_S)
            return ledger.row_steps["recording"] / ledger.took_s

        recordings_alone = await recorded(0, 2 * SPANS)
        await recorded(SPEAKERS, 0)
        speakers_alone = ledger.live()
        recordings_beside = await recorded(SPEAKERS, 2 * SPANS)
    steps = ledger.row_steps
    return {
        "speakers_alone": speakers_alone,
        "speakers_beside_recordings": ledger.live(),
        "row_steps": dict(steps),
        "recordings_share_of_row_steps": round(steps["recording"] / steps.total(), 3),
        "recordings_row_steps_per_s": {"alone": round(recordings_alone, 1), "beside": round(recordings_beside, 1)},
        "recordings_share_of_their_speed": round(recordings_beside / recordings_alone, 3),
    }


@asynccontextmanager
async def _loaded(model_id: str, ledger: Ledger) -> AsyncIterator[tuple[Machinery, LiveSessions]]:
    chosen = settings.load(model_id=model_id, idle_timeout=0.0)
    built = machinery(chosen, feature_list.resolve(chosen, capabilities.probe()), Watch(ledger))
    try:
        await asyncio.wrap_future(built.thread.load())
        yield built, LiveSessions(chosen, Engines(built.clients[""], built.clients[""]), built.admission)
    finally:
        await built.close()


async def _spans_s(built: Machinery) -> float:
    """Seconds for `SPANS` bulk spans that come together."""
    began = time.monotonic()
    work = [built.clients[""].transcribe(_span(), priority=Priority.BULK) for _ in range(SPANS)]
    await asyncio.gather(*work)
    return time.monotonic() - began


def _span() -> Utterance:
    return Utterance(engines.speech(engines.SPAN_S))


@asynccontextmanager
async def _endless(built: Machinery, callers: int) -> AsyncIterator[None]:
    """Run this many callers, each with one span after the other, until the block ends."""

    async def call() -> None:
        while True:
            await built.clients[""].transcribe(_span(), priority=Priority.BULK)

    async with _background([call() for _ in range(callers)]):
        yield


@asynccontextmanager
async def _speaking(live: LiveSessions, speakers: int) -> AsyncIterator[None]:
    """Run this many sessions with people who speak without a pause, until the block ends."""
    async with _background([_speak(live, number / max(1, speakers)) for number in range(speakers)]):
        yield


async def _speak(live: LiveSessions, late_s: float) -> None:
    """One session; `late_s`: so that not all begin at the same moment."""
    await asyncio.sleep(late_s)
    connection = await live.open(LiveSessionOptions(live.turn_config(language="English")))
    pcm, chunk = (32_767 * engines.speech(engines.SPAN_S)).astype("<i2"), int(CHUNK_S * engines.RATE)

    async def speak() -> None:
        began_s, at = time.monotonic(), 0
        while True:
            await connection.send(Audio(np.take(pcm, range(at, at + chunk), mode="wrap").tobytes()))
            at += chunk
            await asyncio.sleep(max(0.0, began_s + at / engines.RATE - time.monotonic()))

    try:
        async with _background([speak()]):
            async for _ in connection.messages():
                pass
    finally:
        live.disconnect(connection, clean=True, resumable=False)


@asynccontextmanager
async def _background(work: list[Any]) -> AsyncIterator[None]:
    """Tasks beside the block, cancelled at its end. Raises what one of them raised."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
