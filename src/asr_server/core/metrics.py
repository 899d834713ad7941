"""Helpers for the metrics of all modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

_M = TypeVar("_M", bound=MetricWrapperBase)


def with_series(metric: _M, *values: Iterable[str]) -> _M:
    """Create a series for each combination of label values: a rate needs the zero before the first event."""
    for labels in product(*values):
        metric.labels(*labels)
    return metric


@dataclass(frozen=True, slots=True, eq=False)
class ReadMetrics:
    """A collector of metrics that are read anew for each scrape, on the event loop."""

    collect: Callable[[], Iterable[Metric]]
