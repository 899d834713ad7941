"""The counters and histograms. `ops/metrics_route.py` reads the gauges.

Every method takes microseconds and raises nothing: it is called on the engine thread and on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asr_server.core.transcript import CoverageKind, RepairReason, UnheardReason
from asr_server.engine.protocol import Hypothesis
from asr_server.jobs.record import RecordState
from asr_server.live.machine.events import Ending
from asr_server.live.session_stats import EstimateResult, LiveObserver, SessionOutcome
from asr_server.net.errors import TABLE
from asr_server.ops import metric_spec as spec
from asr_server.ops.metric_spec import OTHER, MetricKind, MetricSpec, Transport, WorkerEnd
from asr_server.schedule.job import AnyJob, Priority
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd, SchedulerObserver

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


METHODS = ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", OTHER)
STATUSES = ("1xx", "2xx", "3xx", "4xx", "5xx")

# The closed sets. `route` is the pattern of a route of the app, or `-`; those of `asr_build_info` are the server's own.
VALUES: dict[str, tuple[str, ...]] = {
    "method": METHODS,
    "status": STATUSES,
    "surface": tuple(Transport),
    "code": (*TABLE, OTHER),
    "priority": tuple(priority.name.lower() for priority in Priority),
    "end": tuple(JobEnd),
    "kind": ("generated", "audio", "prompt"),
    "result": ("loaded", "failed"),
    "state": tuple(dict.fromkeys((*ModelState, *RecordState))),
    "shared": ("true", "false"),
    "estimate": tuple(EstimateResult),
    "ending": tuple(ending.value for ending in Ending),
    "outcome": tuple(SessionOutcome),
    "cause": tuple(WorkerEnd),
    "coverage": (*(kind for kind in CoverageKind if kind is not CoverageKind.UNHEARD), *UnheardReason),
    "reason": tuple(RepairReason),
}

# From a short command to a recording of hours; the bounds are closest in the range in which people wait.
_REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_TEXT_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)
_LOAD_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
# Live: below 0.2 s nobody notices, above 2 s nobody waits.
_LIVE_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

HTTP_REQUESTS = MetricSpec(
    "asr_http_requests_total",
    _C,
    "Completed HTTP requests, by the pattern of their route.",
    ("route", "method", "status"),
)
HTTP_SECONDS = MetricSpec(
    "asr_http_request_seconds", _H, "From the head of the request to the end of the answer.", ("route",), _REQUEST_S
)
FIRST_TEXT_SECONDS = MetricSpec(
    "asr_first_text_seconds",
    _H,
    "From the head of a streaming request to its first event with text.",
    ("route",),
    _TEXT_S,
)
ERRORS = MetricSpec(
    "asr_errors_total",
    _C,
    "Rejected and failed requests and live connections, by error code; `request_cancelled`: the caller disconnected.",
    ("surface", "code"),
)
RECORDING_AUDIO = MetricSpec(
    "asr_recording_audio_seconds_total", _C, "Seconds of audio of completely transcribed recordings."
)
RECORDING_COVERED = MetricSpec(
    "asr_recording_covered_seconds_total",
    _C,
    "Seconds of completely transcribed recordings: `words`, `silence`, `sound`, or the reason why they are unheard.",
    ("coverage",),
)
REPAIRED_SEGMENTS = MetricSpec(
    "asr_repaired_segments_total",
    _C,
    "Segments of completely transcribed recordings whose first answer was discarded, by the reason.",
    ("reason",),
)
DECODED_AUDIO = MetricSpec("asr_decoded_audio_seconds_total", _C, "Seconds of decoded audio.")
DECODER_FAILURES = MetricSpec(
    "asr_decoder_failures_total", _C, "Files that could not be decoded completely, by error code.", ("code",)
)

QUEUE_JOBS = MetricSpec("asr_queue_jobs", _G, "Spans that wait for the engine.", ("priority",))
QUEUE_AUDIO = MetricSpec("asr_queue_audio_seconds", _G, "Seconds of audio of the spans that wait for the engine.")
QUEUE_WAIT = MetricSpec(
    "asr_queue_wait_seconds",
    _H,
    "Time of a span in the queue until it enters the batch, without the time to load the model.",
    ("priority",),
    _WAIT_S,
)
ADMISSION_HELD = MetricSpec(
    "asr_admission_held_seconds", _G, "Seconds of audio that are accepted but not yet answered."
)
ADMISSION_LIMIT = MetricSpec(
    "asr_admission_limit_seconds",
    _G,
    "`MAX_QUEUE_AUDIO_S`; work beyond it gets 429, as does what cannot be answered in time.",
)

ENGINE_ROWS = MetricSpec("asr_engine_rows", _G, "Rows in the batch.")
ENGINE_BATCH = MetricSpec(
    "asr_engine_batch_rows", _H, "Rows in the batch, for each step.", (), tuple(map(float, _ROWS))
)
ENGINE_STEP = MetricSpec(
    "asr_engine_step_seconds",
    _H,
    "Duration of one step of the batch; the count is the number of steps, the sum the time of inference.",
    (),
    _STEP_S,
)
ENGINE_JOBS = MetricSpec(
    "asr_engine_jobs_total",
    _C,
    "Completed spans: `done`, `failed`, `left` (the caller disconnected), `late` (the deadline passed).",
    ("priority", "end"),
)
ENGINE_JOB_SECONDS = MetricSpec(
    "asr_engine_job_seconds",
    _H,
    "From entering the batch to the result, for spans that are done.",
    ("priority",),
    _REQUEST_S,
)
ENGINE_AUDIO = MetricSpec(
    "asr_engine_audio_seconds_total",
    _C,
    "Seconds of audio of spans that are done. Live speech counts again with every partial.",
    ("priority",),
)
ENGINE_TOKENS = MetricSpec(
    "asr_engine_tokens_total",
    _C,
    "Tokens of spans that are done: generated tokens, audio tokens and prompt tokens.",
    ("kind",),
)
ENGINE_BEAT = MetricSpec(
    "asr_engine_beat_age_seconds", _G, "Seconds since the engine thread made progress; 0 while it has no work."
)
ENGINE_HUNG = MetricSpec(
    "asr_engine_hung", _G, "1 while `/livez` answers 503 because a step takes longer than `ENGINE_HANG_S`."
)

MODEL_STATE = MetricSpec("asr_model_state", _G, "1 for the current state of the default model.", ("state",))
MODELS_STATE = MetricSpec(
    "asr_models_state", _G, "1 for the current state of each model that is served.", ("model", "state")
)
MODELS_ROWS = MetricSpec("asr_models_rows", _G, "Spans in the batch of each model.", ("model",))
MODEL_LOADS = MetricSpec("asr_model_loads_total", _C, "Loads of models.", ("result",))
MODEL_UNLOADS = MetricSpec(
    "asr_model_unloads_total", _C, "Unloads of models that were idle, or gave way to another, or at the end."
)
MODEL_LOAD_SECONDS = MetricSpec(
    "asr_model_load_seconds", _H, "Duration of a load of a model, successful or not.", (), _LOAD_S
)

LIVE_SESSIONS = MetricSpec("asr_live_sessions", _G, "Open live sessions, including those that wait for their client.")
LIVE_WAITING = MetricSpec("asr_live_sessions_waiting", _G, "Live sessions that wait for their client to reconnect.")
LIVE_OPENED = MetricSpec("asr_live_sessions_opened_total", _C, "Started live sessions.")
LIVE_ENDED = MetricSpec("asr_live_sessions_ended_total", _C, "Ended live sessions.", ("outcome",))
LIVE_AUDIO = MetricSpec(
    "asr_live_audio_seconds_total", _C, "Seconds of audio that ended live sessions received, including silence."
)
LIVE_PARTIALS = MetricSpec("asr_live_partials_total", _C, "Partials of live utterances.")
LIVE_ESTIMATES = MetricSpec(
    "asr_live_end_of_turn_total",
    _C,
    "Pauses in which the end of a turn was to be estimated: `estimated`, `skipped` (too many waited), `failed`.",
    ("estimate",),
)
LIVE_UTTERANCES = MetricSpec(
    "asr_live_utterances_total", _C, "Live utterances, by the reason for their end.", ("ending",)
)
LIVE_COMMIT = MetricSpec(
    "asr_live_commit_lag_seconds",
    _H,
    "From the arrival of a word's audio to its commit; the end of the word is estimated from its position in the text.",
    (),
    _LIVE_S,
)
LIVE_FINAL = MetricSpec(
    "asr_live_final_seconds", _H, "From the detected end of a live utterance to its final.", (), _LIVE_S
)

JOBS = MetricSpec(
    "asr_jobs",
    _G,
    "Stored jobs of `/v1/jobs`. With `JOBS_DATABASE_URL` they are `shared`: each server counts those of all.",
    ("state", "shared"),
)
BUILD = MetricSpec(
    "asr_build_info", _G, "Always 1; the labels describe the server.", ("version", "engine", "device", "dtype")
)
UPTIME = MetricSpec("asr_uptime_seconds", _G, "Seconds since the start of the server.")

METRICS: tuple[MetricSpec, ...] = (
    *(value for value in list(globals().values()) if isinstance(value, MetricSpec)),
    spec.FREE_STREAMS,
    spec.READY,
    *spec.OF_GATEWAY,
)


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
        self._requests = create(HTTP_REQUESTS, registry)
        self._seconds = create(HTTP_SECONDS, registry)
        self._first_text = create(FIRST_TEXT_SECONDS, registry)
        self._errors = create(ERRORS, registry)
        for surface in Transport:
            for code in VALUES["code"]:
                self._errors.labels(surface, code)

    def request(self, route: str, method: str, status: int, took_s: float) -> None:
        """Count a request that ended. `route`: a pattern, never a path. `status` 0: the caller left before one."""
        known = method if method in METHODS else OTHER
        self._requests.labels(route, known, f"{(status or 499) // 100}xx").inc()
        self._seconds.labels(route).observe(took_s)

    def first_text(self, route: str, after_s: float) -> None:
        self._first_text.labels(route).observe(after_s)

    def error(self, surface: Transport, code: str) -> None:
        """Count a request that was rejected, failed, or was cancelled by its caller."""
        known = VALUES["code"]
        self._errors.labels(surface, code if code in known else OTHER).inc()


class EngineMetrics(SchedulerObserver):
    """Metrics that the engine thread reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by_priority = VALUES["priority"]
        self._wait = children(create(QUEUE_WAIT, registry), by_priority)
        self._job_seconds = children(create(ENGINE_JOB_SECONDS, registry), by_priority)
        self._audio = children(create(ENGINE_AUDIO, registry), by_priority)
        jobs = create(ENGINE_JOBS, registry)
        self._jobs = {(name, end): jobs.labels(name, end) for name in by_priority for end in JobEnd}
        self._tokens = children(create(ENGINE_TOKENS, registry), VALUES["kind"])
        self._steps = create(ENGINE_STEP, registry)
        self._rows = create(ENGINE_BATCH, registry)
        self._loads = children(create(MODEL_LOADS, registry), VALUES["result"])
        self._unloads = create(MODEL_UNLOADS, registry)
        self._load_seconds = create(MODEL_LOAD_SECONDS, registry)

    def started(self, job: AnyJob) -> None:
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
        self._opened = create(LIVE_OPENED, registry)
        self._ended = children(create(LIVE_ENDED, registry), tuple(SessionOutcome))
        self._audio = create(LIVE_AUDIO, registry)
        self._partials = create(LIVE_PARTIALS, registry)
        self._estimates = children(create(LIVE_ESTIMATES, registry), VALUES["estimate"])
        self._utterances = children(create(LIVE_UTTERANCES, registry), VALUES["ending"])
        self._commit = create(LIVE_COMMIT, registry)
        self._final = create(LIVE_FINAL, registry)

    def opened(self) -> None:
        self._opened.inc()

    def partial(self) -> None:
        self._partials.inc()

    def committed(self, lag_s: float) -> None:
        self._commit.observe(lag_s)

    def estimated(self, result: EstimateResult) -> None:
        self._estimates[result].inc()

    def stopped(self, ending: Ending) -> None:
        self._utterances[ending.value].inc()

    def final(self, after_s: float) -> None:
        self._final.observe(after_s)

    def ended(self, outcome: SessionOutcome, audio_s: float) -> None:
        """Note that a session ended."""
        self._ended[outcome].inc()
        self._audio.inc(audio_s)


def wait_s(job: AnyJob) -> float:
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
