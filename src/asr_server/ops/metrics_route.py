"""`GET /metrics`: all metrics for Prometheus. `api/metrics` keeps the counters; gauges are read on each scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from asr_server import __version__
from asr_server.features.translation.endpoint import PromptOutcome
from asr_server.jobs.record import JobState
from asr_server.ops import metric_table as table
from asr_server.ops import probes
from asr_server.ops.metric_spec import FREE_AUDIO, FREE_STREAMS, READY, MetricKind, MetricSpec
from asr_server.schedule.model import ModelState
from asr_server.services import Services, ServicesDep

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.ops.server_metrics import Metrics

router = APIRouter(tags=["operations"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'asr_model_state{state="loaded"} 1.0\n'}}}},
)
async def metrics(services: ServicesDep) -> Response:
    """All metrics in Prometheus' text format. Never waits for the engine."""
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    samples = SampleCollector(read_samples(services))
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


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The current series of one metric: label values (none for a metric without labels) to the figure."""

    spec: MetricSpec
    values: Mapping[tuple[str, ...], float]


def read_samples(services: Services) -> list[MetricSample]:
    """All gauges, read on the event loop, where most of the state lives."""
    return [*_engine(services), *_work(services), *_live(services), *_speech(services), *_server(services)]


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


def _engine(services: Services) -> Iterable[MetricSample]:
    engine = services.thread.snapshot()
    yield _one(table.ENGINE_ROWS, engine.running)
    yield _one(table.ENGINE_BEAT, engine.heartbeat_age_s if engine.busy else 0.0)
    yield _one(table.ENGINE_HUNG, bool(probes.not_live(services, engine)))
    yield MetricSample(table.MODEL_STATE, {(state,): state is engine.state for state in ModelState})
    names = {name: name or services.plan.model_id for name in engine.models}
    states: dict[tuple[str, ...], float] = {
        (names[name], state): state is status.state for name, status in engine.models.items() for state in ModelState
    }
    yield MetricSample(table.MODELS_STATE, states)
    yield MetricSample(table.MODELS_ROWS, {(names[name],): status.rows for name, status in engine.models.items()})
    yield MetricSample(table.QUEUE_JOBS, {(name,): depth for name, depth in engine.depth.items()})
    yield _one(table.QUEUE_AUDIO, engine.waiting_s)


def _work(services: Services) -> Iterable[MetricSample]:
    yield _one(table.ADMISSION_HELD, services.admission.held_s)
    yield _one(table.ADMISSION_LIMIT, services.admission.limit_s)
    free = services.admission.capacity()
    yield _one(FREE_STREAMS, free.free_streams)
    yield _one(FREE_AUDIO, free.free_audio_s_per_s)
    yield _one(table.RECORDING_AUDIO, services.admission.answered_s)
    yield _one(table.DECODED_AUDIO, services.decoder.decoded_s)
    yield MetricSample(table.DECODER_FAILURES, {(code,): count for code, count in services.decoder.failures.items()})
    counts, prompts = services.jobs.counts, services.translations.questions
    shared = str(services.jobs.is_shared).lower()
    yield MetricSample(table.JOBS, {(state, shared): counts.get(state, 0) for state in JobState})
    yield MetricSample(table.TRANSLATION_QUESTIONS, {(outcome,): prompts.get(outcome, 0) for outcome in PromptOutcome})


def _live(services: Services) -> Iterable[MetricSample]:
    yield _one(table.LIVE_SESSIONS, len(services.live))
    yield _one(table.LIVE_WAITING, services.live.waiting)


def _speech(services: Services) -> Iterable[MetricSample]:
    speech, sessions = services.speech, services.speech_sessions
    yield _one(table.SPEECH_TEXTS, speech.texts + sessions.texts)
    yield _one(table.SPEECH_LEFT, speech.sentences_left + sessions.sentences_left)
    yield _one(table.SPEECH_HELD, speech.admission.held_s)
    yield _one(table.SPEECH_LIMIT, speech.admission.limit_s)
    yield _one(table.SPEECH_CACHE_HITS, speech.cache.hits)
    yield _one(table.SPEECH_CACHE_MISSES, speech.cache.misses)
    yield _one(table.SPEECH_CACHE_BYTES, speech.cache.held_bytes)
    yield _one(table.SPEECH_ENCODER, speech.encoder.pid is not None)
    yield _one(table.SPEECH_FILES, speech.encoder.streams)
    state = None if speech.silent_because else speech.engines.status.state
    yield MetricSample(table.SPEECH_STATE, {(each,): each is state for each in ModelState} if state else {})


def _server(services: Services) -> Iterable[MetricSample]:
    yield _one(READY, not probes.not_ready(services))
    yield _one(table.UPTIME, time.monotonic() - services.started_s)
    plan = services.plan
    yield MetricSample(table.BUILD, {(__version__, plan.engine, plan.device, plan.dtype): 1})


def _one(spec: MetricSpec, value: float) -> MetricSample:
    return MetricSample(spec, {(): float(value)})
