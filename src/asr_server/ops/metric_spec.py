"""The description of a metric, the labels of requests, and the metrics of a gateway, which imports no other of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Transport(StrEnum):
    """The transport of a request."""

    HTTP = "http"
    SOCKET = "socket"


# The label for unknown routes, methods and codes: text of a caller never becomes a label.
OTHER = "other"
NO_ROUTE = "-"


class MetricKind(StrEnum):
    """Prometheus' type of the metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds, of histograms only


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The current series of one metric."""

    spec: MetricSpec
    values: Mapping[tuple[str, ...], float]  # by the values of the labels, none for a metric without labels


def single(spec: MetricSpec, value: float) -> MetricSample:
    return MetricSample(spec, {(): float(value)})


class WorkerEnd(StrEnum):
    """The causes of the end of a gateway's worker process."""

    STOPPED = "stopped"  # on purpose
    CRASHED = "crashed"
    HUNG = "hung"  # killed: it made no progress
    LATE = "late"  # killed: it was not ready in time


READY = MetricSpec("asr_ready", MetricKind.GAUGE, "1 while `/readyz` answers 200.")
FREE_STREAMS = MetricSpec(
    "asr_free_streams", MetricKind.GAUGE, "Live sessions that may be opened: `MAX_LIVE_SESSIONS` without the open ones."
)
WORKER_RUNNING = MetricSpec(
    "asr_worker_running", MetricKind.GAUGE, "Gateway only: 1 while a worker process accepts requests."
)
WORKER_STARTS = MetricSpec("asr_worker_starts_total", MetricKind.COUNTER, "Gateway only: starts of a worker process.")
WORKER_ENDS = MetricSpec(
    "asr_worker_ends_total",
    MetricKind.COUNTER,
    "Gateway only: ended worker processes: `stopped` (idle, or the server ended), `crashed`, `hung` (killed: no "
    "progress), `late` (killed: did not start in time).",
    ("cause",),
)

OF_GATEWAY = (WORKER_RUNNING, WORKER_STARTS, WORKER_ENDS)
