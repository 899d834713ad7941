"""What does counting cost? The calls of one step, one span and one request, and one scrape, without a server."""

from __future__ import annotations

import timeit
from collections.abc import Callable

from prometheus_client import generate_latest

from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.ops.server_metrics import Metrics
from asr_server.schedule.job import Job
from asr_server.schedule.ports import JobEnd

CALLS, ROUNDS = 2_000, 15


def measure() -> dict[str, object]:
    """The least of some rounds, in microseconds a call: what else the machine does is not ours."""
    meters = Metrics()
    said = Hypothesis("on", "English", tuple(range(40)), (-0.1,) * 40, Finish.END, 40, 9, 40)
    job = Job(None, cost_s=4.0, queued_s=1.0, started_s=2.0, ended_s=3.0)

    def span() -> None:
        meters.engine.started(job)
        meters.engine.ended(job, JobEnd.DONE, said)

    return {
        "question": "microseconds that counting takes, by what is counted",
        "step_us": _us(lambda: meters.engine.stepped(4, 0.003)),
        "span_us": _us(span),
        "request_us": _us(lambda: meters.http.request("/v1/audio/transcriptions", "POST", 200, 0.3)),
        "committed_word_us": _us(lambda: meters.live.committed(0.4)),
        "scrape_us": _us(lambda: generate_latest(meters.registry), calls=20),
        "target": "a step of the smallest model takes 3 ms: at most 1 % of it",
    }


def _us(call: Callable[[], object], calls: int = CALLS) -> float:
    return round(1e6 * min(timeit.repeat(call, number=calls, repeat=ROUNDS)) / calls, 2)
