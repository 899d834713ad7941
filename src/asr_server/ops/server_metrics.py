"""The counters and histograms. `ops/metrics_route.py` reads the gauges.

Every method takes microseconds and raises nothing: it is called on the engine thread and on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asr_server.engine.protocol import Hypothesis
from asr_server.live.machine.events import Ending
from asr_server.live.session_stats import EstimateResult, LiveObserver, SessionOutcome
from asr_server.ops import metric_table as table
from asr_server.ops.metric_labels import OTHER, Transport
from asr_server.ops.metric_spec import MetricKind, MetricSpec
from asr_server.schedule.job import AnyJob
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd, SchedulerObserver

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    """The counters and histograms of one app, in a registry of its own, to which features add theirs."""

    def __init__(self) -> None:
        # Imported here: it takes 20 ms, which commands and schema tools need not pay.
        from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

        # Without this call every counter has a second series with its creation time, which is the start of the process.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self.http = HttpMetrics(self.registry)
        self.engine = EngineMetrics(self.registry)
        self.live = LiveMetrics(self.registry)


class HttpMetrics:
    """Metrics that the request log reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = create(table.HTTP_REQUESTS, registry)
        self._seconds = create(table.HTTP_SECONDS, registry)
        self._first_text = create(table.FIRST_TEXT_SECONDS, registry)
        self._errors = create(table.ERRORS, registry)
        for surface in Transport:
            for code in table.VALUES["code"]:
                self._errors.labels(surface, code)

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count a request that ended. `route`: a pattern, never a path. `status` 0: the caller left before one."""
        known = method if method in table.METHODS else OTHER
        self._requests.labels(route, known, f"{(status or 499) // 100}xx").inc()
        self._seconds.labels(route).observe(took_s)

    def first_text(self, route: str, after_s: float) -> None:
        """Note that a stream sent its first text."""
        self._first_text.labels(route).observe(after_s)

    def error(self, surface: Transport, code: str) -> None:
        """Count a request that was rejected, failed, or was cancelled by its caller."""
        known = table.VALUES["code"]
        self._errors.labels(surface, code if code in known else OTHER).inc()


class EngineMetrics(SchedulerObserver):
    """Metrics that the engine thread reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_priority = table.VALUES["priority"]
        self._wait = children(create(table.QUEUE_WAIT, registry), by_priority)
        self._job_seconds = children(create(table.ENGINE_JOB_SECONDS, registry), by_priority)
        self._audio = children(create(table.ENGINE_AUDIO, registry), by_priority)
        jobs = create(table.ENGINE_JOBS, registry)
        self._jobs = {(name, end): jobs.labels(name, end) for name in by_priority for end in JobEnd}
        self._tokens = children(create(table.ENGINE_TOKENS, registry), table.VALUES["kind"])
        self._steps = create(table.ENGINE_STEP, registry)
        self._rows = create(table.ENGINE_BATCH, registry)
        self._loads = children(create(table.MODEL_LOADS, registry), table.VALUES["result"])
        self._unloads = create(table.MODEL_UNLOADS, registry)
        self._load_seconds = create(table.MODEL_LOAD_SECONDS, registry)

    def started(self, job: AnyJob) -> None:
        """A job entered the batch."""
        self._wait[job.priority.name.lower()].observe(wait_s(job))

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """Note that a job ended; `value`: its result."""
        name = job.priority.name.lower()
        self._jobs[name, end].inc()
        if end is not JobEnd.DONE:
            return
        self._job_seconds[name].observe(job.ended_s - job.started_s)
        self._audio[name].inc(job.cost_s)
        if isinstance(value, Hypothesis):
            self._tokens["generated"].inc(len(value.ids))
            self._tokens["audio"].inc(value.audio_tokens)
            self._tokens["prompt"].inc(value.prompt_tokens)

    def stepped(self, rows: int, took_s: float) -> None:
        """Note that the batch made one step."""
        self._rows.observe(rows)
        self._steps.observe(took_s)

    def became(self, state: ModelState, took_s: float) -> None:
        """Note that the model was loaded or unloaded, or failed to load."""
        match state:
            case ModelState.LOADED | ModelState.FAILED:
                self._loads[state.value].inc()
                self._load_seconds.observe(took_s)
            case ModelState.UNLOADED:
                self._unloads.inc()


class LiveMetrics(LiveObserver):
    """Metrics that live sessions report."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._opened = create(table.LIVE_OPENED, registry)
        self._ended = children(create(table.LIVE_ENDED, registry), tuple(SessionOutcome))
        self._audio = create(table.LIVE_AUDIO, registry)
        self._partials = create(table.LIVE_PARTIALS, registry)
        self._estimates = children(create(table.LIVE_ESTIMATES, registry), table.VALUES["estimate"])
        self._utterances = children(create(table.LIVE_UTTERANCES, registry), table.VALUES["ending"])
        self._commit = create(table.LIVE_COMMIT, registry)
        self._final = create(table.LIVE_FINAL, registry)

    def opened(self) -> None:
        """Note that a session began."""
        self._opened.inc()

    def partial(self) -> None:
        """Note that a partial text was sent."""
        self._partials.inc()

    def committed(self, lag_s: float) -> None:
        """Note that a word was committed."""
        self._commit.observe(lag_s)

    def estimated(self, result: EstimateResult) -> None:
        """Note that an estimate of the end of a turn was asked for."""
        self._estimates[result].inc()

    def stopped(self, ending: Ending) -> None:
        """Note that an utterance ended."""
        self._utterances[ending.value].inc()

    def final(self, after_s: float) -> None:
        """Note that the final text of an utterance was sent."""
        self._final.observe(after_s)

    def ended(self, outcome: SessionOutcome, audio_s: float) -> None:
        """Note that a session ended."""
        self._ended[outcome].inc()
        self._audio.inc(audio_s)


def wait_s(job: AnyJob) -> float:
    """Return how long the job was in the queue, without the time to load the model."""
    return job.started_s - job.queued_s - job.load_s


def create(meter: MetricSpec, registry: CollectorRegistry) -> Any:
    """Return the counter or histogram that the description asks for."""
    from prometheus_client import Counter, Histogram

    if meter.kind is MetricKind.HISTOGRAM:
        return Histogram(meter.name, meter.meaning, meter.labels, registry=registry, buckets=meter.buckets)
    return Counter(meter.name, meter.meaning, meter.labels, registry=registry)


def children(metric: Any, values: tuple[str, ...]) -> dict[str, Any]:
    """Return the series of a metric with one label, created now: a rate needs the zero before the first event."""
    return {value: metric.labels(value) for value in values}
