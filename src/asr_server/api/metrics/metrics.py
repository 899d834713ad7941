"""What is counted as it happens: what lower rooms and the request log tell. `snapshots` has the rest.

Everything here takes microseconds and raises nothing: it is called on the engine thread and on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from asr_server.api.metrics import table
from asr_server.api.metrics.labels import OTHER, Transport
from asr_server.api.metrics.spec import MetricKind, MetricSpec
from asr_server.core.errors import AsrError
from asr_server.engine.protocol import Hypothesis
from asr_server.live.events import Ending
from asr_server.scheduling.job import AnyJob
from asr_server.scheduling.observer import JobEnd, SchedulerObserver
from asr_server.scheduling.thread import ModelState
from asr_server.service.live_session.session_stats import LiveObserver, SessionOutcome

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    """All of one app, with a registry of their own."""

    def __init__(self) -> None:
        # 20 ms to import: not for those who only look at the app, or run a command.
        from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

        # A second series for every counter and histogram, that says when it was made: that is the process' start.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self.http = HttpMetrics(self.registry)
        self.engine = EngineMetrics(self.registry)
        self.live = LiveMetrics(self.registry)


def count_error(connection: HTTPConnection, error: AsrError) -> None:
    """A live connection was refused or ended because of this error."""
    meters: Metrics = connection.app.state.services.meters
    meters.http.error(Transport.SOCKET, error.code)


class HttpMetrics:
    """Told by the request log."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = _made(table.HTTP_REQUESTS, registry)
        self._seconds = _made(table.HTTP_SECONDS, registry)
        self._first_text = _made(table.FIRST_TEXT_SECONDS, registry)
        self._errors = _made(table.ERRORS, registry)
        for surface in Transport:
            for code in table.VALUES["code"]:
                self._errors.labels(surface, code)

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        """A request is over. `route`: a pattern, never a path. A `status` of 0 was never sent: the caller had left."""
        known = method if method in table.METHODS else OTHER
        self._requests.labels(route, known, f"{(status or 499) // 100}xx").inc()
        self._seconds.labels(route).observe(took_s)

    def first_text(self, route: str, after_s: float) -> None:
        """A stream's first text left."""
        self._first_text.labels(route).observe(after_s)

    def error(self, surface: Transport, code: str) -> None:
        """Somebody was refused, or failed, or left."""
        known = table.VALUES["code"]
        self._errors.labels(surface, code if code in known else OTHER).inc()


class EngineMetrics(SchedulerObserver):
    """Told by the engine thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_priority = table.VALUES["priority"]
        self._wait = _children(_made(table.QUEUE_WAIT, registry), by_priority)
        self._job_seconds = _children(_made(table.ENGINE_JOB_SECONDS, registry), by_priority)
        self._audio = _children(_made(table.ENGINE_AUDIO, registry), by_priority)
        jobs = _made(table.ENGINE_JOBS, registry)
        self._jobs = {(name, end): jobs.labels(name, end) for name in by_priority for end in JobEnd}
        self._tokens = _children(_made(table.ENGINE_TOKENS, registry), table.VALUES["kind"])
        self._steps = _made(table.ENGINE_STEP, registry)
        self._rows = _made(table.ENGINE_BATCH, registry)
        self._loads = _children(_made(table.MODEL_LOADS, registry), table.VALUES["result"])
        self._unloads = _made(table.MODEL_UNLOADS, registry)
        self._load_seconds = _made(table.MODEL_LOAD_SECONDS, registry)

    def started(self, job: AnyJob) -> None:
        """From the queue to the batch."""
        self._wait[job.priority.name.lower()].observe(job.started_s - job.queued_s - job.load_s)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """Over, and what it brought."""
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
        """One step."""
        self._rows.observe(rows)
        self._steps.observe(took_s)

    def became(self, state: ModelState, took_s: float) -> None:
        """The model was loaded or not, or unloaded."""
        match state:
            case ModelState.LOADED | ModelState.FAILED:
                self._loads[state.value].inc()
                self._load_seconds.observe(took_s)
            case ModelState.UNLOADED:
                self._unloads.inc()


class LiveMetrics(LiveObserver):
    """Told by live sessions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._opened = _made(table.LIVE_OPENED, registry)
        self._ended = _children(_made(table.LIVE_ENDED, registry), tuple(SessionOutcome))
        self._audio = _made(table.LIVE_AUDIO, registry)
        self._partials = _made(table.LIVE_PARTIALS, registry)
        self._utterances = _children(_made(table.LIVE_UTTERANCES, registry), table.VALUES["ending"])
        self._commit = _made(table.LIVE_COMMIT, registry)
        self._final = _made(table.LIVE_FINAL, registry)

    def opened(self) -> None:
        """One more."""
        self._opened.inc()

    def partial(self) -> None:
        """One more."""
        self._partials.inc()

    def committed(self, lag_s: float) -> None:
        """A word."""
        self._commit.observe(lag_s)

    def stopped(self, ending: Ending) -> None:
        """An utterance."""
        self._utterances[ending.value].inc()

    def final(self, after_s: float) -> None:
        """Its text."""
        self._final.observe(after_s)

    def ended(self, outcome: SessionOutcome, heard_s: float) -> None:
        """A session."""
        self._ended[outcome].inc()
        self._audio.inc(heard_s)


def _made(meter: MetricSpec, registry: CollectorRegistry) -> Any:
    from prometheus_client import Counter, Histogram

    if meter.kind is MetricKind.HISTOGRAM:
        return Histogram(meter.name, meter.meaning, meter.labels, registry=registry, buckets=meter.buckets)
    return Counter(meter.name, meter.meaning, meter.labels, registry=registry)


def _children(metric: Any, values: tuple[str, ...]) -> dict[str, Any]:
    """The series of a metric with one label, made now: a rate needs the zero before the first one."""
    return {value: metric.labels(value) for value in values}
