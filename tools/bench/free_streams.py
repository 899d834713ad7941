"""Is the number of free streams true? Live partials while streams are opened until it says 0, and with many more.

Every stream speaks without a pause, in real time, recordings in voices that the model never heard. Streams are opened
as long as the server says that more are free. Then partials must not be later than those of one stream by more than
the time after which the next is due, or than three times as late; with twice as many streams they have to be.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from E2Etest import recordings
from E2Etest.live.session import data, pcm_of
from E2Etest.process import ServerProcess, running

PARTIAL_EVERY_S = 0.45  # the default of WS_BUFFER_SIZE
BEYOND = 2
_CHUNK = 1_600
_RATE = 16_000
_LOOK_S = 2.0
_GIVE_UP_S = 240.0


@dataclass
class Stream:
    """One session. `lags_s`: when each text came, and how long after the audio that it is of had been sent."""

    lags_s: list[tuple[float, float]] = field(default_factory=list)
    finals: int = 0
    refused: str = ""


def measure(hold_s: float = 60.0, **environment: str) -> dict[str, object]:
    """On the demonstration checkpoint, or what `environment` sets. Takes 8 minutes."""
    settings = {
        "PRELOAD": "true",
        "IDLE_TIMEOUT": "0",
        "LOG_LEVEL": "WARNING",
        "MAX_LIVE_SESSIONS": "4096",
        **environment,
    }
    with tempfile.TemporaryDirectory() as folder:
        with running(Path(folder) / "log", LIVE_ADMISSION="true", **settings) as server:
            server.wait_for(lambda health: health["model_loaded"], timeout_s=600)
            one = asyncio.run(_steady(server, 1, hold_s))
            full = asyncio.run(_fill(server, hold_s))
        with running(Path(folder) / "log", LIVE_ADMISSION="false", **settings) as server:
            server.wait_for(lambda health: health["model_loaded"], timeout_s=600)
            beyond = asyncio.run(_steady(server, BEYOND * full["sessions"], hold_s))
    bound_ms = max(3 * one["lag_p95_ms"], one["lag_p95_ms"] + 1000 * PARTIAL_EVERY_S)
    return {
        "question": "Are partials in time while streams are free, and late when there are many more?",
        "one": one,
        "full": full,
        "beyond": beyond,
        "bound_ms": bound_ms,
        "in_time_when_full": full["lag_p95_ms"] <= bound_ms,
        "late_beyond": beyond["lag_p95_ms"] > bound_ms,
    }


async def _steady(server: ServerProcess, sessions: int, hold_s: float) -> dict[str, object]:
    """Hold this many streams, opened within ten seconds."""
    async with _opened() as streams:
        for number in range(sessions):
            streams.add(server)
            await asyncio.sleep(10 / sessions if number + 1 < sessions else 0)
        return await _watched(server, streams, hold_s)


async def _fill(server: ServerProcess, hold_s: float) -> dict[str, object]:
    """Streams while any are free: a third of what is free at a time, since what is measured follows what is open."""
    async with _opened() as streams:
        give_up_s, seen = time.monotonic() + _GIVE_UP_S, []
        streams.add(server)
        while seen[-2:] != [0, 0]:
            await asyncio.sleep(_LOOK_S)
            capacity = (await asyncio.to_thread(server.health))["capacity"]
            free = capacity["free_streams"] if capacity["streams_measured"] else 0
            if capacity["streams_measured"]:
                seen.append(free)
            for _ in range(-(-free // 3)):
                streams.add(server)
            assert time.monotonic() < give_up_s, f"never full: {seen}"
        found = await _watched(server, streams, hold_s)
        return {**found, "free_as_streams_were_opened": seen}


class _Streams:
    def __init__(self) -> None:
        self.all: list[tuple[Stream, asyncio.Task[None]]] = []

    def add(self, server: ServerProcess) -> None:
        stream = Stream()
        self.all.append((stream, asyncio.create_task(_speak(server, stream, len(self.all)))))


@asynccontextmanager
async def _opened() -> AsyncIterator[_Streams]:
    streams = _Streams()
    try:
        yield streams
    finally:
        for _, task in streams.all:
            task.cancel()
        await asyncio.gather(*(task for _, task in streams.all), return_exceptions=True)
        await asyncio.sleep(1.0)  # their sessions end


async def _watched(server: ServerProcess, streams: _Streams, hold_s: float) -> dict[str, object]:
    """Collect the messages of that time, after a third of it in which the load settles."""
    await asyncio.sleep(hold_s / 3)
    began_s = time.monotonic()
    await asyncio.sleep(hold_s)
    health = await asyncio.to_thread(server.health)
    lags_s = [lag_s for stream, _ in streams.all for at_s, lag_s in stream.lags_s if at_s >= began_s]
    halves = [
        [lag_s for stream, _ in streams.all for at_s, lag_s in stream.lags_s if begin_s <= at_s < begin_s + hold_s / 2]
        for begin_s in (began_s, began_s + hold_s / 2)
    ]
    p50, p95 = (round(1000 * float(np.percentile(lags_s, share))) for share in (50, 95))
    return {
        "sessions": health["live"]["sessions"],
        "refused": [stream.refused for stream, _ in streams.all if stream.refused],
        "lag_p50_ms": p50,
        "lag_p95_ms": p95,
        "lag_p50_of_halves_ms": [round(1000 * float(np.median(half))) for half in halves],
        "partials_per_stream_and_s": round(len(lags_s) / hold_s / max(1, health["live"]["sessions"]), 2),
        "capacity": health["capacity"],
    }


async def _speak(server: ServerProcess, stream: Stream, seed: int) -> None:
    pcm = _speech(seed)
    sent: list[tuple[float, float]] = []  # seconds of audio, and when the last of it was sent
    url = server.base.replace("http", "ws", 1) + "/ws/transcribe"
    try:
        async with connect(url, max_size=None, compression=None, open_timeout=60) as socket:
            first = json.loads(await socket.recv())
            if "error" in first:
                stream.refused = first["code"]
                return
            sender = asyncio.create_task(_send(socket, pcm, sent))
            try:
                async for message in socket:
                    _note(stream, json.loads(message), sent)
            finally:
                sender.cancel()
                with suppress(asyncio.CancelledError, ConnectionClosed):
                    await sender
    except ConnectionClosed as error:
        stream.refused = stream.refused or str(error)


async def _send(socket, pcm: np.ndarray, sent: list[tuple[float, float]]) -> None:
    began_s, end = time.monotonic(), 0
    while True:
        piece = np.take(pcm, range(end, end + _CHUNK), mode="wrap")
        end += _CHUNK
        await asyncio.sleep(max(0.0, began_s + end / _RATE - time.monotonic()))
        sent.append((end / _RATE, time.monotonic()))
        await socket.send(data(piece))


def _note(stream: Stream, message: dict, sent: list[tuple[float, float]]) -> None:
    if not message.get("text"):
        return
    stream.finals += bool(message["is_final"])
    if message["is_final"]:
        return
    now_s = time.monotonic()
    place = bisect_left(sent, (message["end"], 0.0))
    stream.lags_s.append((now_s, now_s - sent[min(place, len(sent) - 1)][1]))


def _speech(seed: int) -> np.ndarray:
    """Half a minute or more, without longer pauses than between words."""
    rng, parts, length = random.Random(seed), [], 0
    clips = [clip for clip in recordings.clips() if clip.kind in {"digits", "phrase"}]
    while length < 30 * _RATE:
        pcm = pcm_of(rng.choice(clips).path)
        loud = np.flatnonzero(np.abs(pcm) > 300)
        parts += [pcm[loud[0] : loud[-1]], np.zeros(rng.randrange(800, 4_000), np.int16)]
        length += len(parts[-2]) + len(parts[-1])
    return np.concatenate(parts)
