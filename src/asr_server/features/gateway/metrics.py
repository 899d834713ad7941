"""`GET /metrics` of a gateway: the worker's metrics, with counters that continue over all workers, and its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import httpx

from asr_server.features.gateway.worker import Worker, WorkerConnection
from asr_server.features.gateway.worker_client import GatewayWorkerClient
from asr_server.ops.metric_spec import (
    FREE_STREAMS,
    READY,
    WORKER_ENDS,
    WORKER_RUNNING,
    WORKER_STARTS,
    MetricKind,
    MetricSpec,
)

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATH = "/metrics"
_LIVE = "asr_live_sessions"
_ADD_UP = frozenset({"counter", "histogram"})


class CounterAccumulator:
    """Sums the counters and histograms of one worker after another.

    What a worker counted after its last scrape is not in the sums.
    """

    def __init__(self) -> None:
        self._before: dict[str, Metric] = {}
        self._now: dict[str, Metric] = {}
        self._number = 0

    @property
    def empty(self) -> bool:
        """True if there was no scrape yet."""
        return not self._now

    def scraped(self, number: int, text: str) -> list[Metric]:
        """Take a scrape of the worker with this number, and return the metrics with the counts of earlier workers.

        Raises `ValueError`.
        """
        from prometheus_client.parser import text_string_to_metric_families

        now = {metric.name: metric for metric in text_string_to_metric_families(text)}
        if number != self._number:
            self._before, self._number = {metric.name: metric for metric in self.counts()}, number
        self._now = now
        return self._summed()

    def counts(self) -> list[Metric]:
        """Counters and histograms alone, for a time without a worker."""
        return [metric for metric in self._summed() if metric.type in _ADD_UP]

    def _summed(self) -> list[Metric]:
        names = {**self._now, **self._before}  # in the order of the newest
        return [_sum(self._before.get(name), self._now.get(name)) for name in names]


def _sum(before: Metric | None, now: Metric | None) -> Metric:
    from prometheus_client import Metric

    shape = now or before
    assert shape is not None
    if before is None:  # a gauge, or a count that no earlier worker had
        return shape
    values = {(sample.name, *sample.labels.items()): sample for sample in before.samples}
    for sample in now.samples if now else ():
        key = (sample.name, *sample.labels.items())
        known = values.get(key)
        values[key] = sample._replace(value=sample.value + known.value) if known else sample
    summed = Metric(shape.name, shape.documentation, shape.type)
    summed.samples = list(values.values())
    return summed


class Exposition:
    """The metrics in Prometheus' text format. A scrape neither starts the worker nor counts as use of it."""

    def __init__(self, worker: Worker, client: GatewayWorkerClient, max_sessions: int) -> None:
        self._worker, self._client, self._max_sessions = worker, client, max_sessions
        self._totals = CounterAccumulator()

    async def text(self, *, ready: bool) -> bytes:
        """Return all metrics. `ready`: the answer of `/readyz` while there is no worker that could give it."""
        # 20 ms to import, which a gateway that nobody scrapes does not pay for.
        from prometheus_client.exposition import generate_latest

        connection = self._worker.connection
        scraped = await self._scrape(connection) if connection is not None else None
        own = [*self._own(), *([] if scraped else [_family(READY, {(): float(ready)})])]
        # The worker has no limit of its own.
        live = sum(sample.value for each in scraped or () for sample in each.samples if sample.name == _LIVE)
        own.append(_family(FREE_STREAMS, {(): max(0.0, self._max_sessions - live)}))
        replaced = {metric.name for metric in own}
        others = [metric for metric in scraped or self._totals.counts() if metric.name not in replaced]
        return generate_latest(_ParsedCollector([*others, *own]))

    async def remember(self, connection: WorkerConnection) -> None:
        """Scrape a worker that is about to be ended. Does nothing if nobody ever asked for metrics."""
        if not self._totals.empty:
            await self._scrape(connection)

    async def _scrape(self, connection: WorkerConnection) -> list[Metric] | None:
        status, raw = await self._client.raw(connection, _PATH)
        return self._totals.scraped(connection.number, raw.decode()) if status == httpx.codes.OK else None

    def _own(self) -> Iterable[Metric]:
        yield _family(WORKER_RUNNING, {(): float(self._worker.connection is not None)})
        yield _family(WORKER_STARTS, {(): self._worker.starts})
        yield _family(WORKER_ENDS, {(cause,): count for cause, count in self._worker.ends.items()})


class _ParsedCollector:
    """Metrics in the form that `generate_latest` takes."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families


def _family(spec: MetricSpec, values: Mapping[tuple[str, ...], float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = family(spec.name, spec.meaning, labels=spec.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric
