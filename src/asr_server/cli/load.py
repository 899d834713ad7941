"""Work for a running server, bounded in number and time, and how long each piece of it took. Prints nothing."""

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
from asr_server.client.files import AsyncFileClient, FileError, FileOptions
from asr_server.client.live import ConnectionClosed, LiveClient, LiveError, LiveOptions
from asr_server.core.audio import SAMPLE_RATE

# The first answer may wait for the model.
_FIRST_LIMIT_S = 600.0
# Behind its audio a live session gets so long for its last line.
_LAST_LINE_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """`callers` at a time, until there were `requests` or `limit_s` is over; then `sessions` live ones, at the pace of
    speech, for `limit_s` at most."""

    server: str
    key: str
    recording: Path
    callers: int
    requests: int
    limit_s: float
    sessions: int


@dataclass(slots=True)
class Calls:
    """`waits_s`: of every answered request. `took_s`: from the first request to the last answer. `failures`: by code.
    `unfinished`: under way when the time was over."""

    waits_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0
    unfinished: int = 0


@dataclass(slots=True)
class Talks:
    """Of all live sessions, from the sending of the last audio that a line is about to the line's arrival: `partials_s`
    of open lines, `finals_s` of finished ones, which includes the pause by which the end was known."""

    partials_s: list[float] = field(default_factory=list)
    finals_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Measured:
    """`first_s`: of the first request, which is in no other figure. `length_s`: of the recording."""

    first_s: float
    length_s: float
    calls: Calls
    talks: Talks


async def measure(load: Load) -> Measured:
    """Put the load on the server. Raises `FileError` when the first request fails, `Failure` where the recording cannot
    be decoded for a live session."""
    async with AsyncFileClient(load.server, key=load.key) as client:
        began_s = time.monotonic()
        length_s = await _first(client, load.recording)
        first_s = time.monotonic() - began_s
        calls = await _calls(client, load)
    return Measured(first_s, length_s, calls, await _talks(load))


def rank(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least `share` (0 to 1) of them do not exceed; none may be missing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def _first(client: AsyncFileClient, recording: Path) -> float:
    """Seconds of audio in the recording; loads the model, and shows whether the server takes it at all."""
    try:
        async with asyncio.timeout(_FIRST_LIMIT_S):
            answer = await client.transcribe(recording, FileOptions(response_format="verbose_json"))
    except TimeoutError:
        raise FileError("no_answer", f"The first request had no answer in {_FIRST_LIMIT_S:.0f} s.") from None
    return float(json.loads(answer)["duration"])


async def _calls(client: AsyncFileClient, load: Load) -> Calls:
    found = Calls()
    numbers = iter(range(load.requests))
    began_s = time.monotonic()

    async def caller() -> None:
        for _ in numbers:
            asked_s = time.monotonic()
            try:
                await client.transcribe(load.recording)
            except FileError as error:
                found.failures[error.code] += 1
                continue
            found.waits_s.append(time.monotonic() - asked_s)
            found.took_s = time.monotonic() - began_s

    tasks = [asyncio.create_task(caller()) for _ in range(min(load.callers, load.requests))]
    done, left = await asyncio.wait(tasks, timeout=load.limit_s)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()
    found.unfinished = len(left)
    return found


async def _talks(load: Load) -> Talks:
    found = Talks()
    if not load.sessions:
        return found
    speech = (await pcm.decoded(load.recording))[: 2 * SAMPLE_RATE * int(load.limit_s)]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(load.sessions) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, _talk, load, speech, found) for _ in range(load.sessions)))
    return found


def _talk(load: Load, speech: bytes, found: Talks) -> None:
    """One session; what it finds is appended, which threads may do at once."""
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
                    (found.finals_s if line.final else found.partials_s).append(lag_s)
                if line.ending == "flush":
                    return
    except LiveError as error:
        found.failures[error.code] += 1
    except (OSError, ConnectionClosed):
        found.failures["connection_lost"] += 1
    else:
        found.failures["no_answer"] += 1


def _send(client: LiveClient, speech: bytes, sent_s: list[float]) -> None:
    with suppress(ConnectionClosed):  # the reader sees the same
        for chunk in pcm.paced(speech, 1.0):
            sent_s.append(time.monotonic())
            client.send(chunk)
        client.flush()
