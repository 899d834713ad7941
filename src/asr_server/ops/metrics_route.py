"""`GET /metrics`: all metrics for Prometheus. Counters are defined where they count; the server's gauges are here."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable, Iterator, Sequence

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Metric, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from asr_server import __version__
from asr_server.core.metrics import ReadMetrics
from asr_server.jobs.record import RecordState
from asr_server.net.errors import content
from asr_server.ops import health
from asr_server.schedule.model import ModelState
from asr_server.services import Services, ServicesDep

router = APIRouter(tags=["operations"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: content({"text/plain": 'asr_model_state{state="loaded"} 1.0\n'})},
)
async def metrics(services: ServicesDep) -> Response:
    """Return all metrics in Prometheus' text format. Never waits for the engine."""
    # Gauges show the state of the event loop, so they are read on it. Writing the text takes longer, so a thread does.
    families = list(services.registry.collect())
    body = await asyncio.to_thread(generate_latest, ReadMetrics(lambda: families))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


def new_registry() -> CollectorRegistry:
    """Return a registry for the metrics of one app."""
    # Without this call every counter has a second series with its creation time, which is the start of the process.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def register_gauges(services: Services) -> None:
    for read in (_engine, _process, _work, _server):
        services.registry.register(ReadMetrics(functools.partial(read, services)))


def _engine(services: Services) -> Iterator[Metric]:
    engine = services.thread.snapshot()
    yield GaugeMetricFamily("asr_engine_rows", "Rows in the batch.", engine.running)
    yield GaugeMetricFamily(
        "asr_engine_beat_age_seconds",
        "Time since a busy engine made progress.",
        engine.heartbeat_age_s if engine.busy else 0.0,
    )
    yield GaugeMetricFamily(
        "asr_engine_hung",
        "1 while `/livez` answers 503.",
        bool(health.not_live(services, engine)),
    )
    states = (([state], state is engine.state) for state in ModelState)
    yield _labelled("asr_model_state", "1 for the state of the default model.", ["state"], states)
    models = {name or services.plan.model_id: status for name, status in engine.models.items()}
    yield _labelled(
        "asr_models_state",
        "1 for the state of each model.",
        ["model", "state"],
        (([name, state], state is status.state) for name, status in models.items() for state in ModelState),
    )
    rows = (([name], status.rows) for name, status in models.items())
    yield _labelled("asr_models_rows", "Rows in the batch of each model.", ["model"], rows)
    depth = (([priority], jobs) for priority, jobs in engine.depth.items())
    yield _labelled("asr_queue_jobs", "Spans waiting for the engine.", ["priority"], depth)
    yield GaugeMetricFamily("asr_queue_audio_seconds", "Audio of waiting spans.", engine.waiting_s)


def _process(services: Services) -> Iterator[Metric]:
    ends = CounterMetricFamily(
        "asr_engine_process_ends_total",
        "Ended engine processes, or connections to a shared engine: `stopped`, `crashed`, `hung`, `late` (slow start).",
        labels=["cause"],
    )
    is_running = False
    if services.plan.is_active("engine_process"):
        from asr_server.engine.remote import EngineProcess  # its messages take memory

        assert isinstance(services.thread, EngineProcess)
        is_running = services.thread.is_running
        for cause, count in services.thread.ends.items():
            ends.add_metric([cause], count)
    yield ends
    yield GaugeMetricFamily("asr_engine_process_running", "1 while the engine process takes work.", is_running)


def _work(services: Services) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "asr_admission_held_seconds",
        "Accepted but unanswered audio.",
        services.admission.held_s,
    )
    yield GaugeMetricFamily(
        "asr_admission_limit_seconds",
        "`MAX_QUEUE_AUDIO_S`.",
        services.admission.limit_s,
    )
    counts, shared = services.jobs.counts, str(services.jobs.is_shared).lower()
    yield _labelled(
        "asr_jobs",
        "Stored jobs; `shared` ones are counted by every server.",
        ["state", "shared"],
        (([state, shared], counts.get(state, 0)) for state in RecordState),
    )
    yield GaugeMetricFamily("asr_live_sessions", "Open live sessions.", len(services.live))
    yield GaugeMetricFamily(
        "asr_live_sessions_waiting", "Open live sessions without their client.", services.live.waiting
    )
    yield GaugeMetricFamily(
        "asr_free_streams",
        "Live sessions that may be opened.",
        health.free_streams(services),
    )


def _server(services: Services) -> Iterator[Metric]:
    yield GaugeMetricFamily("asr_ready", "1 while `/readyz` answers 200.", not health.not_ready(services))
    yield GaugeMetricFamily("asr_uptime_seconds", "Uptime.", time.monotonic() - services.started_s)
    plan = services.plan
    yield _labelled(
        "asr_build_info",
        "Always 1.",
        ["version", "engine", "device", "dtype"],
        [((__version__, plan.engine, plan.device, plan.dtype), 1)],
    )


def _labelled(
    name: str, meaning: str, labels: Sequence[str], series: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in series:
        family.add_metric(values, value)
    return family
