"""Reads the metrics of a server at `/metrics`, parsed as Prometheus would."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families

from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.translation.endpoint import PromptOutcome
from asr_server.ops import server_metrics

# The values of every label come from a closed set, so the number of series is bounded whatever callers send.
LABEL_VALUES = {
    **server_metrics.VALUES,
    "format": tuple(SpeechFormat),
    "outcome": (*server_metrics.VALUES["outcome"], *PromptOutcome),
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(server) -> Series:
    """Return every sample: name and labels to value."""
    answer = server.client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(series) == len(samples), "a series stands twice"
    return series


def value(series: Series, name: str, **labels: str) -> float:
    """Return one sample; 0 if there is none yet."""
    return series.get((name, frozenset(labels.items())), 0.0)


def total(series: Series, name: str, **labels: str) -> float:
    """Return the sum of all samples of that name that have these labels."""
    wanted = set(labels.items())
    return sum(v for (found, has), v in series.items() if found == name and wanted <= has)


def moved(before: Series, after: Series) -> Callable[..., float]:
    """Return a function that tells by how much `total` grew between two scrapes."""
    return lambda name, **labels: total(after, name, **labels) - total(before, name, **labels)
