"""What is read when it is asked for: the state that the rooms publish anyway. Nothing here waits for the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server import __version__
from asr_server.api.metrics import table
from asr_server.api.metrics.spec import READY, MetricKind, MetricSpec
from asr_server.api.ops import probes
from asr_server.scheduling.thread import ModelState
from asr_server.service.jobs.record import JobState
from asr_server.translator.endpoint import PromptOutcome

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.api.dependencies import Services


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The present series of one metric: label values (none for a metric without labels) to the figure."""

    meter: MetricSpec
    values: Mapping[tuple[str, ...], float]


def read(services: Services) -> list[MetricSample]:
    """All of it, on the event loop, where most of it lives."""
    return [*_engine(services), *_work(services), *_live(services), *_server(services)]


class SampleCollector:
    """A collector of readings that were taken before: what is collected may run on another thread."""

    def __init__(self, readings: Iterable[MetricSample]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """For the library's encoder."""
        # Made anew for each scrape: a registry would keep the first.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for reading in self._readings:
            meter = reading.meter
            family = CounterMetricFamily if meter.kind is MetricKind.COUNTER else GaugeMetricFamily
            metric = family(meter.name, meter.meaning, labels=meter.labels)
            for labels, value in reading.values.items():
                metric.add_metric(labels, value)
            yield metric


def _engine(services: Services) -> Iterable[MetricSample]:
    seen = services.thread.snapshot()
    yield _one(table.ENGINE_ROWS, seen.running)
    yield _one(table.ENGINE_BEAT, seen.heartbeat_age_s if seen.busy else 0.0)
    yield _one(table.ENGINE_HUNG, bool(probes.not_live(services, seen)))
    yield MetricSample(table.MODEL_STATE, {(state,): state is seen.state for state in ModelState})
    yield MetricSample(table.QUEUE_JOBS, {(name,): depth for name, depth in seen.depth.items()})
    yield _one(table.QUEUE_AUDIO, seen.waiting_s)


def _work(services: Services) -> Iterable[MetricSample]:
    yield _one(table.ADMISSION_HELD, services.admission.held_s)
    yield _one(table.ADMISSION_LIMIT, services.admission.limit_s)
    yield _one(table.RECORDING_AUDIO, services.admission.answered_s)
    yield _one(table.DECODED_AUDIO, services.decoder.decoded_s)
    yield MetricSample(table.DECODER_FAILURES, {(code,): count for code, count in services.decoder.failures.items()})
    counts, questions = services.jobs.counts, services.translations.questions
    yield MetricSample(table.JOBS, {(state,): counts.get(state, 0) for state in JobState})
    yield MetricSample(table.TRANSLATION_QUESTIONS, {(asked,): questions.get(asked, 0) for asked in PromptOutcome})


def _live(services: Services) -> Iterable[MetricSample]:
    yield _one(table.LIVE_SESSIONS, len(services.live))
    yield _one(table.LIVE_WAITING, services.live.waiting)


def _server(services: Services) -> Iterable[MetricSample]:
    yield _one(READY, not probes.not_ready(services))
    yield _one(table.UPTIME, time.monotonic() - services.started_s)
    plan = services.plan
    yield MetricSample(table.BUILD, {(__version__, plan.engine, plan.device, plan.dtype): 1})


def _one(meter: MetricSpec, value: float) -> MetricSample:
    return MetricSample(meter, {(): float(value)})
