"""`GET /metrics` of a gateway: the worker's metrics, counted on over all workers, and the gateway's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import httpx

from asr_server.api.metrics.spec import READY, WORKER_ENDS, WORKER_RUNNING, WORKER_STARTS, MetricKind, MetricSpec
from asr_server.gateway.counter_accumulator import CounterAccumulator
from asr_server.gateway.worker import Worker, WorkerConnection
from asr_server.gateway.worker_client import WorkerClient

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATH = "/metrics"


class Exposition:
    """In Prometheus' text format. Asking for it neither starts the worker nor keeps it from being idle."""

    def __init__(self, worker: Worker, questions: WorkerClient) -> None:
        self._worker, self._questions = worker, questions
        self._totals = CounterAccumulator()

    async def text(self, *, ready: bool) -> bytes:
        """All of it. `ready`: what `/readyz` says while there is no worker that could say it."""
        # 20 ms to import: only for those who are scraped.
        from prometheus_client.exposition import generate_latest

        link = self._worker.link
        told = await self._scrape(link) if link is not None else None
        own = [*self._own(), *([] if told else [_family(READY, {(): float(ready)})])]
        return generate_latest(_ParsedCollector([*(told or self._totals.counts()), *own]))

    async def remember(self, link: WorkerConnection) -> None:
        """This worker is about to be ended: the last chance to ask what it has counted, if anybody ever asks."""
        if not self._totals.empty:
            await self._scrape(link)

    async def _scrape(self, link: WorkerConnection) -> list[Metric] | None:
        status, raw = await self._questions.raw(link, _PATH)
        return self._totals.scraped(link.number, raw.decode()) if status == httpx.codes.OK else None

    def _own(self) -> Iterable[Metric]:
        yield _family(WORKER_RUNNING, {(): float(self._worker.link is not None)})
        yield _family(WORKER_STARTS, {(): self._worker.starts})
        yield _family(WORKER_ENDS, {(cause,): count for cause, count in self._worker.ends.items()})


class _ParsedCollector:
    """As the encoder wants it."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._families


def _family(meter: MetricSpec, values: Mapping[tuple[str, ...], float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = CounterMetricFamily if meter.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = family(meter.name, meter.meaning, labels=meter.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric
