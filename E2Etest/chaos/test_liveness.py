"""Probes: a server with all hands full is alive, one whose engine hangs is not, and it can still be ended."""

import asyncio
import statistics
import time

import httpx
import pytest

from E2Etest.chaos import uploads
from E2Etest.chaos.rig import HANG, at_rest, faulty
from E2Etest.drive.recordings import clips

pytestmark = [
    pytest.mark.performance,
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.guarantee("liveness"),
    pytest.mark.timeout(300),
]

CALLERS = 24
PROBES = 400
HANG_S = 15.0


# The real model: that it leaves the event loop time to answer is what is to be shown.
async def test_a_saturated_engine_is_alive(loaded, measured, note):
    """Three batches of callers who come again at once: every probe is answered, with 200 and soon."""
    clip = next(clip for clip in clips() if clip.path.name == "dense-20s.flac")
    body, stop, took_s, waiting = uploads.form(clip.path.read_bytes()), asyncio.Event(), [], []

    async def call():
        while not stop.is_set():
            assert (await uploads.sent(loaded, body)).status == 200

    callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
    async with httpx.AsyncClient(base_url=loaded.base, timeout=60) as prober:
        while len(took_s) < PROBES:
            began_s = time.monotonic()
            assert (await prober.get("/livez")).status_code == 200
            took_s.append(time.monotonic() - began_s)
            if len(took_s) % 50 == 0:
                waiting.append((await prober.get("/health")).json()["queue"])
            await asyncio.sleep(0.01)
    stop.set()
    await asyncio.gather(*callers)
    await asyncio.to_thread(loaded.wait_for, at_rest)
    assert sum(queue["running"] > 0 and queue["interactive"] > 0 for queue in waiting) > len(waiting) / 2
    measured("probe_p99_ms", 1000 * statistics.quantiles(took_s, n=100)[98])
    note(f"{CALLERS} concurrent callers")


@pytest.fixture
def server(tmp_path):
    with faulty(tmp_path / "log") as server:
        yield server


async def test_an_engine_that_hangs_is_not_alive_and_does_not_keep_the_process(server, sample, measured, note):
    """With the default `ENGINE_HANG_S`. SIGTERM ends the process with 0 although the engine never comes back."""
    form = {
        "files": {"file": ("a.wav", sample[0])},
        "data": {"model": "whisper-1", "prompt": HANG},
    }
    async with httpx.AsyncClient(base_url=server.base, timeout=60) as caller, httpx.AsyncClient(timeout=60) as prober:
        with server.hangs_next():
            leaver = asyncio.create_task(caller.post("/v1/audio/transcriptions", **form))
            await asyncio.to_thread(server.wait_until_hanging)
            began_s = time.monotonic()
            while (probe := await prober.get(f"{server.base}/livez")).status_code == 200:
                assert time.monotonic() - began_s < 5 * HANG_S
                await asyncio.sleep(0.05)
            dead_s = time.monotonic() - began_s
            leaver.cancel()
            assert probe.json()["reason"] == "the engine thread does not move"
            server.process.terminate()
            assert await asyncio.to_thread(server.process.wait, 90) == 0
            gone_s = time.monotonic() - began_s - dead_s
    measured("detection_s", max(0.0, dead_s - HANG_S))
    note(f"with a hung engine the process ended {gone_s:.1f} s after SIGTERM")
