"""What the server does by itself while it runs."""

import asyncio
import inspect
from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from unittest.mock import Mock

import httpx
import pytest
import soundfile
from loguru import logger

from asr_server import app as server
from asr_server import demo, feature_list
from asr_server import services as dependencies
from asr_server.core import idle
from asr_server.core.conftest import until
from asr_server.core.errors import Overloaded
from asr_server.core.idle import IdleTimer
from asr_server.core.settings import Settings
from asr_server.engine import capabilities, remote
from asr_server.engine.protocol import Utterance
from asr_server.schedule.job import Job, Priority


def _app(tmp_path, **changed):
    return server.create_app(Settings(_env_file=None, model_id="fake", state_dir=str(tmp_path), **changed))


@pytest.mark.parametrize(("free_mb", "trims"), [(10, False), (100, True)])
async def test_free_heap_goes_back_when_it_is_much(monkeypatch, tmp_path, free_mb, trims):
    """While the app runs; a little stays for the next batch."""
    free, trim = Mock(return_value=free_mb * 2**20), Mock()
    monkeypatch.setattr(idle, "TRIM_EVERY_S", 0.001)
    monkeypatch.setattr(idle, "free_heap_bytes", free)
    monkeypatch.setattr(idle, "trim_heap", trim)
    app = _app(tmp_path)
    async with app.router.lifespan_context(app):
        await until(lambda: free.call_count > 2)
    assert trim.called is trims


async def test_without_the_shared_engine_the_server_is_not_ready_and_live_and_says_why(monkeypatch, tmp_path):
    """The server recovers when the engine starts. Restarting the server would not help."""
    monkeypatch.setattr(remote, "START_S", 0.1)
    app = _app(tmp_path, engine_process=f"unix:{tmp_path}/engine.sock")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        asyncio.timeout(20),
    ):
        while "asr-server engine" not in (await client.get("/readyz")).text:  # noqa: ASYNC110 - readiness sets no event
            await asyncio.sleep(0.02)
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/livez")).status_code == 200
        audio = {"file": ("a.wav", demo.sample().recording.read_bytes())}
        refused = await client.post("/v1/audio/transcriptions", files=audio, data={"model": "whisper-1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_failed")


async def test_settings_of_other_servers_are_one_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("WS_OVERLAP_SIZE", "320")
    monkeypatch.setenv("WORKER_PORT", "8001")
    lines = []
    sink = logger.add(lines.append, format="{message}{extra}")
    app = _app(tmp_path)
    async with app.router.lifespan_context(app):
        logger.remove(sink)
    (warning,) = [line for line in lines if line.startswith("settings without effect")]
    assert "WS_OVERLAP_SIZE" in warning
    assert "WORKER_PORT" in warning


def test_no_request_needs_a_thread(tmp_path):
    """FastAPI calls plain functions in threads, which a busy event loop keeps waiting: the probes would fail."""

    def calls(dependant):
        yield dependant.call
        for needed in dependant.dependencies:
            yield from calls(needed)

    routers = [route.original_router for route in _app(tmp_path).routes if hasattr(route, "original_router")]
    routes = [route for router in routers for route in router.routes if hasattr(route, "dependant")]
    found = {call for route in routes for call in calls(route.dependant)}
    assert {dependencies.get_services, dependencies.get_caller} <= found
    assert [call for call in found if not inspect.iscoroutinefunction(call)] == []


@pytest.mark.torch
async def test_a_pass_shows_that_it_moves_to_whoever_asks_whether_the_engine_lives(monkeypatch):
    """Each pass of the model beats the heart that `/livez` listens to, beside a turn's own three or four ticks."""
    ticks = Counter()
    touch = IdleTimer.touch
    monkeypatch.setattr(IdleTimer, "touch", lambda timer: (ticks.update([id(timer)]), touch(timer)))
    settings = Settings(_env_file=None, model_id="demo")
    built = server.machinery(settings, feature_list.resolve(settings, capabilities.probe()))
    try:
        audio = soundfile.read(demo.sample().recording, dtype="float32")[0]
        job = Job(Utterance(audio), priority=Priority.BULK, cost_s=3.0)
        heard = await asyncio.wrap_future(built.thread.submit(job))
    finally:
        await built.close()
    assert max(ticks.values()) > 4 * heard.passes


@pytest.mark.parametrize(("device", "refused"), [("cpu", True), ("cuda", False)])
async def test_the_first_burst_after_a_start_is_judged_by_the_device(tmp_path, device, refused):
    """Forty recordings of 30 s within 300 s are too much for two cores, and nothing for any GPU."""
    settings = Settings(_env_file=None, model_id="fake", state_dir=str(tmp_path), request_timeout=200)
    built = server.machinery(settings, replace(feature_list.resolve(settings, capabilities.probe()), device=device))
    try:
        tickets = ExitStack()
        with tickets, pytest.raises(Overloaded) if refused else nullcontext():
            for _ in range(40):
                built.admission.measure(tickets.enter_context(built.admission.hold()), 30.0)
    finally:
        await built.close()
