"""The counters and histograms. `ops/metrics_route.py` reads the gauges.

Every method takes microseconds and raises nothing: it is called on the engine thread and on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asr_server.core.audio import SPEECH_RATE
from asr_server.engine.protocol import Hypothesis
from asr_server.features.speech_output.encoding.formats import SpeechFormat
from asr_server.features.speech_output.engines.protocol import Sentence, SpeechFinish, SpokenSentence
from asr_server.features.speech_output.observer import SpeechObserver
from asr_server.live.machine.events import Ending
from asr_server.live.session_stats import EstimateResult, LiveObserver, SessionOutcome
from asr_server.ops import metric_table as table
from asr_server.ops.metric_labels import OTHER, Transport
from asr_server.ops.metric_spec import MetricKind, MetricSpec
from asr_server.schedule.job import AnyJob
from asr_server.schedule.model import ModelState
from asr_server.schedule.observer import JobEnd, SchedulerObserver

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Metrics:
    """All counters and histograms of one app, in a registry of its own."""

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
        self.speech = SpeechMetrics(self.registry)


class HttpMetrics:
    """Metrics that the request log reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = _create(table.HTTP_REQUESTS, registry)
        self._seconds = _create(table.HTTP_SECONDS, registry)
        self._first_text = _create(table.FIRST_TEXT_SECONDS, registry)
        self._errors = _create(table.ERRORS, registry)
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
        self._wait = _children(_create(table.QUEUE_WAIT, registry), by_priority)
        self._job_seconds = _children(_create(table.ENGINE_JOB_SECONDS, registry), by_priority)
        self._audio = _children(_create(table.ENGINE_AUDIO, registry), by_priority)
        jobs = _create(table.ENGINE_JOBS, registry)
        self._jobs = {(name, end): jobs.labels(name, end) for name in by_priority for end in JobEnd}
        self._tokens = _children(_create(table.ENGINE_TOKENS, registry), table.VALUES["kind"])
        self._steps = _create(table.ENGINE_STEP, registry)
        self._rows = _create(table.ENGINE_BATCH, registry)
        self._loads = _children(_create(table.MODEL_LOADS, registry), table.VALUES["result"])
        self._unloads = _create(table.MODEL_UNLOADS, registry)
        self._load_seconds = _create(table.MODEL_LOAD_SECONDS, registry)

    def started(self, job: AnyJob) -> None:
        """A job entered the batch."""
        self._wait[job.priority.name.lower()].observe(_wait_s(job))

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
        self._opened = _create(table.LIVE_OPENED, registry)
        self._ended = _children(_create(table.LIVE_ENDED, registry), tuple(SessionOutcome))
        self._audio = _create(table.LIVE_AUDIO, registry)
        self._partials = _create(table.LIVE_PARTIALS, registry)
        self._estimates = _children(_create(table.LIVE_ESTIMATES, registry), table.VALUES["estimate"])
        self._utterances = _children(_create(table.LIVE_UTTERANCES, registry), table.VALUES["ending"])
        self._commit = _create(table.LIVE_COMMIT, registry)
        self._final = _create(table.LIVE_FINAL, registry)

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


class SpeechMetrics(SpeechObserver):
    """Metrics that speech output and the thread of its engine report."""

    def __init__(self, registry: CollectorRegistry) -> None:
        answers = _create(table.SPEECH_ANSWERS, registry)
        self._answers = {(name, end): answers.labels(name, end) for name in SpeechFormat for end in JobEnd}
        self._first_audio = _create(table.SPEECH_FIRST_AUDIO, registry)
        self._sentences = _children(_create(table.SPEECH_SENTENCES, registry), table.VALUES["end"])
        self._wait = _create(table.SPEECH_WAIT, registry)
        self._inference = _create(table.SPEECH_INFERENCE, registry)
        self._encoding = _create(table.SPEECH_ENCODING, registry)
        self._audio = _create(table.SPEECH_AUDIO, registry)
        self._characters = _create(table.SPEECH_CHARACTERS, registry)
        self._cut_short = _create(table.SPEECH_CUT_SHORT, registry)

    def first_audio(self, after_s: float) -> None:
        """The first audio of an answer was ready."""
        self._first_audio.observe(after_s)

    def encoded(self, took_s: float) -> None:
        """A sentence was encoded."""
        self._encoding.observe(took_s)

    def answered(self, audio_format: SpeechFormat, end: JobEnd) -> None:
        """The work for a text is over."""
        self._answers[audio_format, end].inc()

    def started(self, job: AnyJob) -> None:
        """A sentence entered the engine."""
        self._wait.observe(_wait_s(job))

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        """A sentence ended; `value`: its result."""
        self._sentences[end].inc()
        if isinstance(job.item, Sentence) and isinstance(value, SpokenSentence):
            self._inference.observe(job.ended_s - job.started_s)
            self._characters.inc(len(job.item.text))
            self._audio.inc(value.samples / SPEECH_RATE)
            self._cut_short.inc(value.finish is SpeechFinish.BUDGET)


def _wait_s(job: AnyJob) -> float:
    """In the queue, without the time to load the model."""
    return job.started_s - job.queued_s - job.load_s


def _create(meter: MetricSpec, registry: CollectorRegistry) -> Any:
    from prometheus_client import Counter, Histogram

    if meter.kind is MetricKind.HISTOGRAM:
        return Histogram(meter.name, meter.meaning, meter.labels, registry=registry, buckets=meter.buckets)
    return Counter(meter.name, meter.meaning, meter.labels, registry=registry)


def _children(metric: Any, values: tuple[str, ...]) -> dict[str, Any]:
    """The series of a metric with one label, created now: a rate needs the zero before the first event."""
    return {value: metric.labels(value) for value in values}
