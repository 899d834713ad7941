"""Measures a running server under load: latencies of requests, lags of live sessions. The load is bounded."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from asr_server.cli import pcm
from asr_server.client.files import AsyncFileClient, FileError, OutputOptions, ResponseFormat, TranscriptionRequest
from asr_server.client.live import ConnectionClosed, LiveClient, LiveError, LiveOptions
from asr_server.core.audio import SAMPLE_RATE

# The first request may wait until the model is loaded.
_FIRST_LIMIT_S = 600.0
# After its audio, a live session has this long for its last line.
_LAST_LINE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load to measure under: first requests, then live sessions at the pace of speech."""

    server: str  # address
    key: str
    recording: Path
    callers: int  # requests at a time
    requests: int  # in all
    limit_s: float  # seconds at most for the requests, and again for the sessions
    sessions: int  # live sessions at the same time


@dataclass(slots=True)
class RequestStats:
    """The outcomes of the requests."""

    latencies_s: list[float] = field(default_factory=list)  # of every answered request
    failures: Counter[str] = field(default_factory=Counter)  # by code
    elapsed_s: float = 0.0  # from the first request to the last answer
    unfinished: int = 0  # requests that ran when the time was over


@dataclass(slots=True)
class LiveStats:
    """The lags of all live sessions: from sending the last audio of a line until the line arrives."""

    partials_s: list[float] = field(default_factory=list)  # of open lines
    finals_s: list[float] = field(default_factory=list)  # of finished lines, with the pause that ended them
    failures: Counter[str] = field(default_factory=Counter)  # by code


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measurement of a server."""

    first_s: float  # latency of the first request, which is part of no other figure
    duration_s: float  # of the recording
    requests: RequestStats
    live: LiveStats


async def measure(load: Load) -> Measurement:
    """Run the load. Raises `FileError` where the first request fails, `Failure` where the recording cannot be decoded
    for a live session."""
    async with AsyncFileClient(load.server, key=load.key) as client:
        start_s = time.monotonic()
        duration_s = await _first(client, load.recording)
        first_s = time.monotonic() - start_s
        requests = await _requests(client, load)
    return Measurement(first_s, duration_s, requests, await _live(load))


def rank(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed. There must be at least
    one."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def _first(client: AsyncFileClient, recording: Path) -> float:
    """Return the duration of the recording, in seconds. This request loads the model, and may be refused."""
    request = TranscriptionRequest(output=OutputOptions(ResponseFormat.VERBOSE_JSON))
    try:
        async with asyncio.timeout(_FIRST_LIMIT_S):
            answer = await client.transcribe(recording, request)
    except TimeoutError:
        raise FileError("no_answer", f"The first request had no answer in {_FIRST_LIMIT_S:.0f} s.") from None
    return float(json.loads(answer)["duration"])


async def _requests(client: AsyncFileClient, load: Load) -> RequestStats:
    stats = RequestStats()
    numbers = iter(range(load.requests))
    start_s = time.monotonic()

    async def caller() -> None:
        for _ in numbers:
            sent_at_s = time.monotonic()
            try:
                await client.transcribe(load.recording)
            except FileError as error:
                stats.failures[error.code] += 1
                continue
            stats.latencies_s.append(time.monotonic() - sent_at_s)
            stats.elapsed_s = time.monotonic() - start_s

    tasks = [asyncio.create_task(caller()) for _ in range(min(load.callers, load.requests))]
    done, unfinished = await asyncio.wait(tasks, timeout=load.limit_s)
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*unfinished, return_exceptions=True)
    for task in done:
        task.result()
    stats.unfinished = len(unfinished)
    return stats


async def _live(load: Load) -> LiveStats:
    stats = LiveStats()
    if not load.sessions:
        return stats
    speech = (await pcm.decoded(load.recording))[: 2 * SAMPLE_RATE * int(load.limit_s)]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(load.sessions) as pool:
        await asyncio.gather(
            *(loop.run_in_executor(pool, _live_session, load, speech, stats) for _ in range(load.sessions))
        )
    return stats


def _live_session(load: Load, speech: bytes, stats: LiveStats) -> None:
    """Run one session. All threads append to the same lists, which needs no lock."""
    try:
        with LiveClient(load.server, LiveOptions(token=load.key)) as client:
            sent_s: list[float] = []
            sender = threading.Thread(target=_send, args=(client, speech, sent_s), daemon=True)
            sender.start()
            for line in client.lines(wait_s=len(speech) / (2 * SAMPLE_RATE) + _LAST_LINE_LIMIT_S):
                now_s = time.monotonic()
                if line.text:
                    chunk = math.ceil(1000 * line.end_s / pcm.CHUNK_MS) - 1
                    lag_s = now_s - sent_s[min(max(chunk, 0), len(sent_s) - 1)]
                    (stats.finals_s if line.final else stats.partials_s).append(lag_s)
                if line.ending == "flush":
                    return
    except LiveError as error:
        stats.failures[error.code] += 1
    except (OSError, ConnectionClosed):
        stats.failures["connection_lost"] += 1
    else:
        stats.failures["no_answer"] += 1


def _send(client: LiveClient, speech: bytes, sent_s: list[float]) -> None:
    with suppress(ConnectionClosed):  # the reading thread gets the same error
        for chunk in pcm.paced(speech, 1.0):
            sent_s.append(time.monotonic())
            client.send(chunk)
        client.flush()
