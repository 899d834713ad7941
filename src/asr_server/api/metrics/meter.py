"""What a metric is, and those that a gateway says itself, which imports nothing that the server needs for the others.

Data only; all others stand in `table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What Prometheus makes of it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Meter:
    """One metric. `buckets`: upper bounds, of histograms only."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class WorkerEnd(StrEnum):
    """Why a gateway's worker process is gone."""

    STOPPED = "stopped"  # on purpose
    CRASHED = "crashed"
    HUNG = "hung"  # killed: it did not move
    LATE = "late"  # killed: it did not come up


READY = Meter("asr_ready", Kind.GAUGE, "1 when `/readyz` answers 200.")
WORKER_RUNNING = Meter("asr_worker_running", Kind.GAUGE, "Gateway only: 1 while a worker process takes requests.")
WORKER_STARTS = Meter("asr_worker_starts_total", Kind.COUNTER, "Gateway only: starts of a worker process.")
WORKER_ENDS = Meter(
    "asr_worker_ends_total",
    Kind.COUNTER,
    "Gateway only: worker processes that are gone: `stopped` (it was idle, or the server ended), `crashed`, `hung` "
    "(killed, it did not move), `late` (killed, it did not come up).",
    ("cause",),
)

OF_GATEWAY = (WORKER_RUNNING, WORKER_STARTS, WORKER_ENDS)
