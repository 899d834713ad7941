"""Health, whatever the engine does."""

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import ClassVar

import httpx
import pytest
from fastapi import FastAPI

from asr_server.core.errors import Overloaded
from asr_server.core.settings import Settings
from asr_server.engine import capabilities, plan
from asr_server.engine.protocol import EngineInfo
from asr_server.ops import health
from asr_server.schedule.admission import Admission
from asr_server.schedule.job import Job
from asr_server.schedule.thread import EngineThread


class _Hanging:
    """A batch of one row whose step does not return before it is let go."""

    loaded = True

    def __init__(self):
        self.rows, self.stepping, self.go = [], threading.Event(), threading.Event()

    @property
    def free_slots(self):
        return 1 - len(self.rows)

    urgent_slots = free_slots

    def admit(self, key, item, urgent=False):
        self.rows.append(key)

    def step(self, begin_s=None):
        self.stepping.set()
        self.go.wait(30)
        return iter(())

    def drop(self, key):
        self.rows = [row for row in self.rows if row != key]

    def unload(self): ...


class _Live:
    waiting = 0
    times: ClassVar = {}

    def __len__(self):
        return 0


@pytest.fixture
def batch():
    return _Hanging()


@pytest.fixture
def app(batch):
    """Health and the probes over an engine thread of the test's own."""
    settings = Settings(_env_file=None, model_id="demo")
    thread = EngineThread(batch, idle_timeout_s=0)
    app = FastAPI()
    app.include_router(health.router)
    app.state.health_sections = ()
    app.state.services = SimpleNamespace(
        settings=settings,
        plan=plan.resolve(settings, capabilities.probe()),
        engines={"": SimpleNamespace(info=EngineInfo("scripted", "demo", "cpu", "float32"))},
        drafting=None,
        thread=thread,
        admission=Admission(100.0),
        jobs=SimpleNamespace(pending=0),
        live=_Live(),
        features=(),
        started_s=time.monotonic(),
        ready=True,
        draining=False,
    )
    yield app
    batch.go.set()
    thread.close()


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz"])
async def test_no_probe_waits_for_the_engine(app, batch, path):
    """One job is in a step that does not end, another waits behind it: the answer comes and shows both."""
    thread = app.state.services.thread
    for _ in range(2):
        thread.submit(Job("item", cost_s=4.0))
    assert await asyncio.to_thread(batch.stepping.wait, 10)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        async with asyncio.timeout(5):
            answer = await client.get(path)
    assert answer.status_code == 200
    assert not batch.go.is_set()
    if path == "/health":
        queue = answer.json()["queue"]
        assert (queue["running"], queue["interactive"], queue["audio_waiting_s"]) == (1, 1, 4.0)


def test_what_loading_decided_takes_the_place_of_the_plan():
    """Before, the plan says that it is open; afterwards there is the number format, with its reason, once."""
    planned = (plan.Option("device", True, "cuda", "found"), plan.Option("dtype", True, "auto", "decided at load"))
    decided = plan.Option("dtype", True, "float16", "a T4")
    for options, expected in (((), planned), ((decided,), (planned[0], decided))):
        info = EngineInfo("qwen", "m", "cuda", "auto", options=options)
        services = SimpleNamespace(
            plan=SimpleNamespace(options=planned),
            engines={"": SimpleNamespace(info=info)},
            drafting=None,
            live=_Live(),
        )
        assert tuple(health._options(services)) == expected


def test_a_server_that_is_full_for_recordings_alone_is_ready(app):
    """A load balancer would send live sessions nowhere; one that is full for both is not ready."""
    services = app.state.services
    with services.admission.hold(time_limit_s=1.0) as ticket:
        services.admission.measure(ticket, 95.0)
        with pytest.raises(Overloaded):
            services.admission.check()
        assert health.not_ready(services) == "saturated"
    services.admission = Admission(1_000.0, time_limit_s=1.0)
    with services.admission.hold(time_limit_s=600.0) as ticket:
        services.admission.measure(ticket, 95.0)
        with pytest.raises(Overloaded):
            services.admission.check()
        assert health.not_ready(services) == ""
