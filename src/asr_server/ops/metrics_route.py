"""`GET /metrics`: all metrics for Prometheus. `server_metrics.py` keeps the counters; `GAUGES` reads the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response

from asr_server import __version__
from asr_server.jobs.record import RecordState
from asr_server.net.errors import content
from asr_server.ops import health
from asr_server.ops import server_metrics as table
from asr_server.ops.metric_spec import FREE_STREAMS, READY, MetricKind, MetricSample, single
from asr_server.schedule.model import ModelState
from asr_server.services import Services, ServicesDep

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.ops.server_metrics import Metrics

router = APIRouter(tags=["operations"])

ReadGauges = Callable[[Services], Iterable[MetricSample]]


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: content({"text/plain": 'asr_model_state{state="loaded"} 1.0\n'})},
)
async def metrics(request: Request, services: ServicesDep) -> Response:
    """Return all metrics in Prometheus' text format. Never waits for the engine."""
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    readers: tuple[ReadGauges, ...] = request.app.state.gauges
    samples = SampleCollector([sample for read in readers for sample in read(services)])
    # Some thousand lines take milliseconds, which would delay the event loop.
    body = await asyncio.to_thread(generate_latest, _CombinedCollector(services.metrics, samples))
    return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _CombinedCollector:
    """The counters and the samples together, as the encoder takes them."""

    def __init__(self, metrics: Metrics, samples: SampleCollector) -> None:
        self._metrics = metrics
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families."""
        yield from self._metrics.registry.collect()
        yield from self._samples.collect()


class SampleCollector:
    """A collector of samples that were taken before, since the encoder runs on another thread."""

    def __init__(self, samples: Iterable[MetricSample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families for the encoder."""
        # New families for each scrape: a registry would keep the first ones.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for sample in self._samples:
            spec = sample.spec
            family = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
            metric = family(spec.name, spec.meaning, labels=spec.labels)
            for labels, value in sample.values.items():
                metric.add_metric(labels, value)
            yield metric


def engine_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield what the engine thread does."""
    engine = services.thread.snapshot()
    yield single(table.ENGINE_ROWS, engine.running)
    yield single(table.ENGINE_BEAT, engine.heartbeat_age_s if engine.busy else 0.0)
    yield single(table.ENGINE_HUNG, bool(health.not_live(services, engine)))
    yield MetricSample(table.MODEL_STATE, {(state,): state is engine.state for state in ModelState})
    names = {name: name or services.plan.model_id for name in engine.models}
    states: dict[tuple[str, ...], float] = {
        (names[name], state): state is status.state for name, status in engine.models.items() for state in ModelState
    }
    yield MetricSample(table.MODELS_STATE, states)
    yield MetricSample(table.MODELS_ROWS, {(names[name],): status.rows for name, status in engine.models.items()})
    yield MetricSample(table.QUEUE_JOBS, {(name,): depth for name, depth in engine.depth.items()})
    yield single(table.QUEUE_AUDIO, engine.waiting_s)


def work_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield what was accepted: recordings and jobs."""
    yield single(table.ADMISSION_HELD, services.admission.held_s)
    yield single(table.ADMISSION_LIMIT, services.admission.limit_s)
    yield single(FREE_STREAMS, health.free_streams(services))
    yield single(table.RECORDING_AUDIO, services.admission.answered_s)
    heard = services.pipeline
    covered_s: dict[tuple[str, ...], float] = {
        (outcome,): heard.covered_ms[outcome] / 1000 for outcome in table.VALUES["coverage"]
    }
    yield MetricSample(table.RECORDING_COVERED, covered_s)
    yield MetricSample(table.REPAIRED_SEGMENTS, {(why,): heard.repaired[why] for why in table.VALUES["reason"]})
    yield single(table.DECODED_AUDIO, services.decoder.decoded_s)
    yield MetricSample(table.DECODER_FAILURES, {(code,): count for code, count in services.decoder.failures.items()})
    counts = services.jobs.counts
    shared = str(services.jobs.is_shared).lower()
    yield MetricSample(table.JOBS, {(state, shared): counts.get(state, 0) for state in RecordState})


def live_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield the number of live sessions."""
    yield single(table.LIVE_SESSIONS, len(services.live))
    yield single(table.LIVE_WAITING, services.live.waiting)


def server_gauges(services: Services) -> Iterable[MetricSample]:
    """Yield what the server is, and for how long."""
    yield single(READY, not health.not_ready(services))
    yield single(table.UPTIME, time.monotonic() - services.started_s)
    plan = services.plan
    yield MetricSample(table.BUILD, {(__version__, plan.engine, plan.device, plan.dtype): 1})


GAUGES: tuple[ReadGauges, ...] = (engine_gauges, work_gauges, live_gauges, server_gauges)
