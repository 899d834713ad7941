"""The worker's counters over all workers: the next one does not begin again at nothing, and a sleep changes none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Metric

_ADD_UP = frozenset({"counter", "histogram"})


class CounterAccumulator:
    """What was scraped, summed up. What a worker counted after its last scrape is not in it."""

    def __init__(self) -> None:
        self._before: dict[str, Metric] = {}
        self._now: dict[str, Metric] = {}
        self._number = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was ever scraped."""
        return not self._now

    def scraped(self, number: int, text: str) -> list[Metric]:
        """What the worker of that number says, with the counts of those before it. Raises `ValueError`."""
        from prometheus_client.parser import text_string_to_metric_families

        now = {metric.name: metric for metric in text_string_to_metric_families(text)}
        if number != self._number:
            self._before, self._number = {metric.name: metric for metric in self.counts()}, number
        self._now = now
        return self._summed()

    def counts(self) -> list[Metric]:
        """Without a worker: what only grows."""
        return [metric for metric in self._summed() if metric.type in _ADD_UP]

    def _summed(self) -> list[Metric]:
        names = {**self._now, **self._before}  # in the order of the newest
        return [_sum(self._before.get(name), self._now.get(name)) for name in names]


def _sum(before: Metric | None, now: Metric | None) -> Metric:
    from prometheus_client import Metric

    shape = now or before
    assert shape is not None
    if before is None or shape.type not in _ADD_UP:
        return shape
    values = {(sample.name, *sample.labels.items()): sample for sample in before.samples}
    for sample in now.samples if now else ():
        key = (sample.name, *sample.labels.items())
        known = values.get(key)
        values[key] = sample._replace(value=sample.value + known.value) if known else sample
    summed = Metric(shape.name, shape.documentation, shape.type)
    summed.samples = list(values.values())
    return summed
