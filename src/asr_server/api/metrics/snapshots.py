"""What is read when it is asked for: the state that the rooms publish anyway. Nothing here waits for the engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server import __version__
from asr_server.api import probes
from asr_server.api.metrics import table
from asr_server.api.metrics.meter import READY, Kind, Meter
from asr_server.scheduling.thread import ModelState
from asr_server.service.jobs.record import JobState
from asr_server.translator.endpoint import Asked

if TYPE_CHECKING:
    from prometheus_client import Metric

    from asr_server.api.deps import Services


@dataclass(frozen=True, slots=True)
class Reading:
    """The present series of one metric: label values (none for a metric without labels) to the figure."""

    meter: Meter
    values: Mapping[tuple[str, ...], float]


def read(here: Services) -> list[Reading]:
    """All of it, on the event loop, where most of it lives."""
    return [*_engine(here), *_work(here), *_live(here), *_server(here)]


class Readings:
    """A collector of readings that were taken before: what is collected may run on another thread."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        """For the library's encoder."""
        # Made anew for each scrape: a registry would keep the first.
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for reading in self._readings:
            meter = reading.meter
            family = CounterMetricFamily if meter.kind is Kind.COUNTER else GaugeMetricFamily
            metric = family(meter.name, meter.meaning, labels=meter.labels)
            for labels, value in reading.values.items():
                metric.add_metric(labels, value)
            yield metric


def _engine(here: Services) -> Iterable[Reading]:
    seen = here.thread.snapshot()
    yield _one(table.ENGINE_ROWS, seen.running)
    yield _one(table.ENGINE_BEAT, seen.beat_age_s if seen.busy else 0.0)
    yield _one(table.ENGINE_HUNG, bool(probes.not_live(here, seen)))
    yield Reading(table.MODEL_STATE, {(state,): state is seen.state for state in ModelState})
    yield Reading(table.QUEUE_JOBS, {(name,): depth for name, depth in seen.depth.items()})
    yield _one(table.QUEUE_AUDIO, seen.waiting_s)


def _work(here: Services) -> Iterable[Reading]:
    yield _one(table.ADMISSION_HELD, here.admission.held_s)
    yield _one(table.ADMISSION_LIMIT, here.admission.limit_s)
    yield _one(table.RECORDING_AUDIO, here.admission.answered_s)
    yield _one(table.DECODED_AUDIO, here.decoder.decoded_s)
    yield Reading(table.DECODER_FAILURES, {(code,): count for code, count in here.decoder.failures.items()})
    counts, questions = here.jobs.counts, here.translations.questions
    yield Reading(table.JOBS, {(state,): counts.get(state, 0) for state in JobState})
    yield Reading(table.TRANSLATION_QUESTIONS, {(asked,): questions.get(asked, 0) for asked in Asked})


def _live(here: Services) -> Iterable[Reading]:
    yield _one(table.LIVE_SESSIONS, len(here.live))
    yield _one(table.LIVE_WAITING, here.live.waiting)


def _server(here: Services) -> Iterable[Reading]:
    yield _one(READY, not probes.not_ready(here))
    yield _one(table.UPTIME, time.monotonic() - here.started_s)
    plan = here.plan
    yield Reading(table.BUILD, {(__version__, plan.engine, plan.device, plan.dtype): 1})


def _one(meter: Meter, value: float) -> Reading:
    return Reading(meter, {(): float(value)})
