"""Counters over workers, in the text format itself."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asr_server.features.gateway.metrics import CounterAccumulator


class _Worker:
    """Counts."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests.", ["route"], registry=self.registry)
        self.seconds = Histogram("seconds", "Times.", ["route"], buckets=(1.0, 5.0), registry=self.registry)
        self.rows = Gauge("rows", "Rows.", registry=self.registry)

    def work(self, route, took_s):
        self.requests.labels(route).inc()
        self.seconds.labels(route).observe(took_s)

    @property
    def text(self):
        return generate_latest(self.registry).decode()


class _Told:
    def __init__(self, families):
        self._families = families

    def collect(self):
        return self._families


def _text(families):
    return generate_latest(_Told(families)).decode()


def _values(families):
    """Read back from the text, so it is one that Prometheus takes."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(_text(families))
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_the_first_workers_text_is_passed_on_as_it_is():
    """Names, order, words and figures."""
    worker = _Worker()
    worker.work("/a", 0.5)
    assert _text(CounterAccumulator().scraped(1, worker.text)) == worker.text


def test_counts_go_on_with_the_next_worker_and_gauges_are_its_own():
    """Each series once, also those that only one of the two has; buckets, sums and counts of histograms alike."""
    first, second, totals = _Worker(), _Worker(), CounterAccumulator()
    for route in ("/a", "/a", "/b"):
        first.work(route, 0.5)
    first.rows.set(7)
    totals.scraped(1, first.text)
    second.work("/a", 3.0)
    second.work("/c", 3.0)
    values = _values(totals.scraped(2, second.text))
    assert [values["requests_total", route] for route in ("/a", "/b", "/c")] == [3, 1, 1]
    assert [values["seconds_bucket", le, "/a"] for le in ("1.0", "5.0", "+Inf")] == [2, 3, 3]
    assert [values["seconds_sum", route] for route in ("/a", "/b", "/c")] == [4.0, 0.5, 3.0]
    assert values["rows",] == 0


def test_between_two_workers_counts_stand_still_and_gauges_are_gone():
    """Nothing is said of what is not there."""
    worker, totals = _Worker(), CounterAccumulator()
    worker.work("/a", 0.5)
    before = _values(totals.scraped(1, worker.text))
    asleep = _values(totals.counts())
    assert asleep == {name: found for name, found in before.items() if name[0] != "rows"}


@pytest.mark.parametrize("scrapes", [1, 3])
def test_no_count_ever_falls(scrapes):
    """However often each of many workers is asked, and whatever it had done by then."""
    totals, seen, done = CounterAccumulator(), 0.0, 0
    for number in range(1, 6):
        worker = _Worker()
        for _ in range(scrapes):
            worker.work("/a", 0.1)
            done += 1
            now = _values(totals.scraped(number, worker.text))["requests_total", "/a"]
            assert now == done > seen
            seen = now
        assert _values(totals.counts())["requests_total", "/a"] == seen


def test_before_any_scrape_there_is_nothing():
    """And it says so."""
    totals = CounterAccumulator()
    assert totals.empty
    assert totals.counts() == []
