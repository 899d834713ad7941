"""Plays a trace of live sessions and recordings, as `asr_server_sizing` simulates it, against real servers.

A live session goes to the server with the fewest of them, a recording to that with the least audio that this driver has
sent and that is not answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server_sizing.simulation import Trace
from E2Etest import recordings
from E2Etest.live.session import data, pcm_of

CHUNK_SAMPLES = SAMPLE_RATE // 10
_ON, _OFF = 0.5, 0.35  # of the server's voice detection
_LAST_S = 20.0
# The pause of a final: from the end of its audio to the endpoint.
_PAUSE_S = 0.35


@dataclass
class Played:
    """The times of the answers."""

    partials_s: list[float] = field(default_factory=list)  # as the server states them
    finals_s: list[float] = field(default_factory=list)  # as the server states them, without the pause
    uploads_s: list[float] = field(default_factory=list)  # of recordings
    refused: int = 0
    answered_s: float = 0.0  # audio of recordings that were answered


def talk(seconds: float, pause_s: float, seed: int) -> np.ndarray:
    """Return int16 (n,) of that length: the held-out English clips in some order, each with a pause after it."""
    chance, parts, samples = random.Random(seed), [], 0
    clips = [clip for clip in recordings.clips() if clip.language == "English"]
    while samples < seconds * SAMPLE_RATE:
        parts += [pcm_of(chance.choice(clips).path), np.zeros(int(pause_s * SAMPLE_RATE), np.int16)]
        samples += len(parts[-2]) + len(parts[-1])
    return np.concatenate(parts)[: int(seconds * SAMPLE_RATE)]


def regions(pcm: np.ndarray) -> list[tuple[float, float]]:
    """Return the regions in which the server's voice detection finds speech, in seconds."""
    frames = len(pcm) // FRAME_SAMPLES
    scorer, found, begin = SpeechProbability(), [], None
    samples = pcm[: frames * FRAME_SAMPLES].astype(np.float32) / 32768
    for number, probability in enumerate(scorer.push(samples)):
        at_s = number * FRAME_SAMPLES / SAMPLE_RATE
        if begin is None and probability >= _ON:
            begin = at_s
        elif begin is not None and probability < _OFF:
            found.append((begin, at_s))
            begin = None
    return [*found, *([(begin, len(pcm) / SAMPLE_RATE)] if begin is not None else [])]


async def play(servers: Sequence[str], trace: Trace, voices: Sequence[np.ndarray], upload: np.ndarray) -> Played:
    """Play a trace. `servers`: addresses. `voices`: audio of its speakers. `upload`: the audio of every recording."""
    found, began_s = Played(), time.monotonic()
    sessions, waiting_s = dict.fromkeys(servers, 0), dict.fromkeys(servers, 0.0)
    body, seconds = recordings.wav(upload), len(upload) / SAMPLE_RATE

    def counts() -> bool:
        return trace.warm_up_s <= time.monotonic() - began_s <= trace.duration_s

    async def speak(at_s: float, pcm: np.ndarray) -> None:
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        server = min(servers, key=lambda name: sessions[name])
        sessions[server] += 1
        async with connect(server.replace("http", "ws", 1) + "/ws/transcribe", compression=None) as socket:
            reader = asyncio.create_task(_read(socket, found, counts))
            with suppress(ConnectionClosed):
                await _send(socket, pcm)
            with suppress(TimeoutError):
                await asyncio.wait_for(reader, _LAST_S)

    async def send(client: httpx.AsyncClient, at_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        server = min(servers, key=lambda name: waiting_s[name])
        waiting_s[server] += seconds
        sent_s = time.monotonic()
        answer = await client.post(
            f"{server}/v1/audio/transcriptions", files={"file": ("audio.wav", body)}, data={"model": "whisper-1"}
        )
        waiting_s[server] -= seconds
        if not counts():
            return
        if answer.status_code == 200:
            found.uploads_s.append(time.monotonic() - sent_s)
            found.answered_s += seconds
        else:
            found.refused += 1

    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=200)) as client:
        await asyncio.gather(
            *(speak(speaker.at_s, pcm) for speaker, pcm in zip(trace.speakers, voices, strict=True)),
            *(send(client, one.at_s) for one in trace.uploads),
        )
    return found


async def _send(socket, pcm: np.ndarray) -> None:
    began_s = time.monotonic()
    for at in range(0, len(pcm), CHUNK_SAMPLES):
        await asyncio.sleep(max(0.0, began_s + (at + CHUNK_SAMPLES) / SAMPLE_RATE - time.monotonic()))
        await socket.send(data(pcm[at : at + CHUNK_SAMPLES]))
    await socket.send(json.dumps({"action": "flush"}))


async def _read(socket, found: Played, counts) -> None:
    async for text in socket:
        message = json.loads(text)
        if message.get("ending") == "flush":
            return
        if "lag_ms" in message and message["text"] and counts():
            lag_s = message["lag_ms"] / 1000
            if message["is_final"]:
                found.finals_s.append(max(0.0, lag_s - _PAUSE_S))
            else:
                found.partials_s.append(lag_s)
