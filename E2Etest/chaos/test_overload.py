"""Callers ask for ten times the work that the server can do: it refuses the rest at once, and finishes what it took."""

import asyncio
import statistics

import pytest

from E2Etest.chaos import uploads
from E2Etest.drive.process import at_rest, running
from E2Etest.drive.recordings import clips
from E2Etest.drive.wire import form

pytestmark = [pytest.mark.performance, pytest.mark.slow, pytest.mark.guarantee("admission")]

AT_ONCE = 8  # recordings that the server may hold
CALM_S, STORM_S = 6.0, 15.0
TIMES = 10


def _percent(values, share):
    return statistics.quantiles(values, n=100)[share - 1]


async def _timed(server, body):
    began_s = asyncio.get_running_loop().time()
    answer = await uploads.sent(server, body)
    return answer, answer.at_s - began_s


async def _at_the_limit(server, body):
    """As many callers as the server takes at once, for a while: how long each waited, and the most memory meanwhile."""
    loop = asyncio.get_running_loop()
    ends_s, seen, memory_mb = loop.time() + CALM_S, [], 0.0

    async def call():
        while loop.time() < ends_s:
            seen.append(await _timed(server, body))

    callers = asyncio.gather(*(call() for _ in range(AT_ONCE)))
    while not callers.done():
        memory_mb = max(memory_mb, server.own_mb())
        await asyncio.sleep(0.02)
    await callers
    assert {answer.status for answer, _ in seen} == {200}
    return [took_s for _, took_s in seen], memory_mb


async def _storm(server, body, rate):
    """Callers that come evenly, whatever becomes of those before them, and the most memory meanwhile."""
    loop, memory_mb = asyncio.get_running_loop(), 0.0
    began_s, callers = loop.time(), []
    while (now_s := loop.time() - began_s) < STORM_S:
        due = int(now_s * rate) - len(callers)
        callers += [asyncio.create_task(_timed(server, body)) for _ in range(due)]
        memory_mb = max(memory_mb, server.own_mb())
        await asyncio.sleep(0.02)
    return await asyncio.gather(*callers), memory_mb


async def test_ten_times_too_much_is_refused_at_once_and_slows_nobody(tmp_path, measured, note):
    """Refused with a time to wait, in next to none; who is accepted waits as long as when the server is just full; the
    memory is that of the full server."""
    clip = next(clip for clip in clips() if clip.path.name == "dense-20s.flac")
    body = form(clip.path.read_bytes())
    limits = {"MAX_QUEUE_AUDIO_S": f"{AT_ONCE * clip.seconds + 1}", "IDLE_TIMEOUT": "0"}
    with running(tmp_path / "log", PRELOAD="true", **limits) as server:
        await asyncio.to_thread(server.wait_for, lambda health: health["model_loaded"], timeout_s=180)
        words = (await uploads.sent(server, body)).body["text"]
        await asyncio.gather(*(uploads.sent(server, body) for _ in range(AT_ONCE)))
        calm, calm_mb = await _at_the_limit(server, body)
        rate = TIMES * len(calm) / CALM_S
        seen, storm_mb = await _storm(server, body, rate)
        await asyncio.to_thread(server.wait_for, at_rest)
        assert (await uploads.sent(server, body)).body["text"] == words

    accepted = [(answer, took_s) for answer, took_s in seen if answer.status == 200]
    refused = [(answer, took_s) for answer, took_s in seen if answer.status != 200]
    assert len(refused) > (TIMES / 3) * len(accepted) > 0
    assert {answer.body["text"] for answer, _ in accepted} == {words}
    assert {(answer.status, answer.body["error"]["code"]) for answer, _ in refused} == {(429, "rate_limit_exceeded")}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer, _ in refused)
    measured("memory_growth_percent", 100 * (storm_mb / calm_mb - 1))

    refused_s = _percent([took_s for _, took_s in refused], 99)
    calm_s, storm_s = _percent(calm, 95), _percent([took_s for _, took_s in accepted], 95)
    measured("refusal_p99_ms", 1000 * refused_s)
    measured("accepted_p95_ratio", storm_s / calm_s)
    note(f"{len(refused)} of {len(seen)} requests refused")
