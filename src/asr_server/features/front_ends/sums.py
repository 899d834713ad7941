"""The metrics and the state of one server, from those of its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from asr_server.features.gateway import metrics as gateway_metrics

if TYPE_CHECKING:
    from prometheus_client import Metric

# Gauges that count what each process has. Of the others, such as what the engine does and what is free, which every
# process knows of the whole server, the greatest counts; and of these the least.
_ADDED = frozenset(
    {
        *("asr_live_sessions", "asr_live_sessions_waiting"),
        *("process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"),
    }
)
_LEAST = frozenset({"asr_ready", "process_start_time_seconds", "process_max_fds"})


def metrics(texts: Iterable[str]) -> bytes:
    """Return the metrics of all processes as those of one, in Prometheus' text format. `texts`: those of each."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(gateway_metrics.ParsedCollector(list(summed(texts).values())))


def summed(texts: Iterable[str]) -> dict[str, Metric]:
    """Return the sums of all processes' metrics, by name. Raises `ValueError` for a text that holds none."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, Metric] = {}
    for text in texts:
        for metric in text_string_to_metric_families(text):
            before = found.get(metric.name)
            found[metric.name] = metric if before is None else _both(before, metric)
    return found


def counters(text: str) -> dict[str, Metric]:
    """Return what goes on counting after the end of the process that told it."""
    return {name: metric for name, metric in summed([text]).items() if metric.type in gateway_metrics.ADD_UP}


def _both(some: Metric, more: Metric) -> Metric:
    if some.type in gateway_metrics.ADD_UP or some.name in _ADDED:
        return gateway_metrics.joined(some, more)
    return gateway_metrics.joined(some, more, min if some.name in _LEAST else max)


def health(own: dict[str, Any], others: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return the answer of `/health` for the whole server. `own`: that of this process; `others`: what the others have
    of sessions and jobs."""
    live = dict(own["live"])
    for name in ("sessions", "waiting"):
        live[name] += sum(counts.get(name, 0) for counts in others)
    return own | {"live": live, "jobs": own["jobs"] + sum(counts.get("jobs", 0) for counts in others)}
