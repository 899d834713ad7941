"""Reads the metrics of a server at `/metrics`, parsed as Prometheus would, and the page that describes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from asr_server.core.errors import TABLE
from asr_server.core.transcript import RepairReason, UnheardReason
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.translation.endpoint import PromptOutcome
from asr_server.jobs.record import RecordState
from asr_server.live.machine.events import Ending
from asr_server.live.session_stats import EstimateResult, SessionOutcome
from asr_server.net.request_log import METHODS, OTHER
from asr_server.processes.supervisor import ProcessEnd
from asr_server.schedule.job import JobEnd, Priority
from asr_server.schedule.model import ModelState

# The values of every label come from a closed set, so the number of series is bounded whatever callers send.
LABEL_VALUES = {
    "method": METHODS,
    "status": ("1xx", "2xx", "3xx", "4xx", "5xx"),
    "surface": ("http", "socket"),
    "code": (*TABLE, OTHER),
    "priority": tuple(priority.name.lower() for priority in Priority),
    "end": tuple(JobEnd),
    "kind": ("generated", "audio", "prompt"),
    "result": ("loaded", "failed"),
    "state": (*ModelState, *RecordState),
    "shared": ("true", "false"),
    "estimate": tuple(EstimateResult),
    "ending": tuple(ending.value for ending in Ending),
    "outcome": (*SessionOutcome, *PromptOutcome),
    "cause": tuple(ProcessEnd),
    "coverage": ("words", "silence", "sound", *UnheardReason),
    "reason": tuple(RepairReason),
    "format": tuple(SpeechFormat),
}

_PAGE = Path(__file__).parents[1] / "docs" / "run" / "observability.md"


class Documented(NamedTuple):
    """A metric, as the page describes it."""

    labels: frozenset[str]
    kind: str
    meaning: str


_ROW = re.compile(r"^\| `(asr_\w+)(?:{([\w,]+)})?` \| (counter|gauge|histogram) \| (.+) \|$", re.MULTILINE)
# By name. The page is the contract with dashboards and alert rules: a server exposes these metrics and no others.
DOCUMENTED = {
    name: Documented(frozenset(filter(None, labels.split(","))), kind, meaning)
    for name, labels, kind, meaning in _ROW.findall(_PAGE.read_text(encoding="utf-8"))
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
