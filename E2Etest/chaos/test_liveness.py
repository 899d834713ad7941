"""Probes: a server with all hands full is alive, one whose engine hangs is not, and it can still be ended."""

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from E2Etest.chaos import uploads
from E2Etest.drive.process import at_rest, fake_model, ready, until
from E2Etest.drive.recordings import clips
from E2Etest.drive.wire import form

pytestmark = [pytest.mark.performance, pytest.mark.guarantee("liveness")]

CALLERS = 24
PROBES = 400
HANG_S = 15.0


# The real model: that it leaves the event loop time to answer is what is to be shown.
async def test_a_saturated_engine_is_alive(loaded, measured, note):
    """Three batches of callers who come again at once: every probe is answered, with 200 and soon."""
    clip = next(clip for clip in clips() if clip.path.name == "dense-20s.flac")
    body, stop, took_s, waiting = form(clip.path.read_bytes()), asyncio.Event(), [], []

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


def test_an_engine_that_hangs_is_not_alive_and_does_not_keep_the_process(tmp_path, sample, measured, note):
    """With the default `ENGINE_HANG_S`. SIGTERM ends the process with 0 although the engine never comes back."""
    hangs = tmp_path / "hangs"
    fault = {"context": "hang", "text": sample[1], "fault": "hang", "after_tokens": 3, "hang_file": str(hangs)}
    engine = fake_model(tmp_path, script={"rules": [fault, {"text": sample[1]}]})
    with ready(tmp_path / "log", **engine) as server, ThreadPoolExecutor(1) as pool, httpx.Client() as prober:
        form = {"files": {"file": sample[0]}, "data": {"prompt": "hang"}, "timeout": HANG_S / 2}
        pool.submit(httpx.post, f"{server.base}/v1/audio/transcriptions", **form)  # it leaves before the end
        until(hangs.exists)
        began_s = time.monotonic()
        while (probe := prober.get(f"{server.base}/livez")).status_code == 200:
            assert time.monotonic() - began_s < 5 * HANG_S
            time.sleep(0.05)
        dead_s = time.monotonic() - began_s
        assert probe.json()["reason"] == "the engine thread does not move"
        server.process.terminate()
        assert server.process.wait(90) == 0
        gone_s = time.monotonic() - began_s - dead_s
    measured("detection_s", max(0.0, dead_s - HANG_S))
    note(f"with a hung engine the process ended {gone_s:.1f} s after SIGTERM")
