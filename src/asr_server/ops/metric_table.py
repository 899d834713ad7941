"""The metrics of the core: their names, meanings, labels and buckets. Data only.

`http_app.METRICS` has those of the features too, and `docs/run/observability.md` shows them.

The values of every label come from a closed set, so the number of series is bounded whatever callers send.
"""

from __future__ import annotations

from asr_server.jobs.record import JobState
from asr_server.live.machine.events import Ending
from asr_server.live.session_stats import EstimateResult, SessionOutcome
from asr_server.net.errors import TABLE
from asr_server.ops import metric_spec as spec
from asr_server.ops.metric_labels import OTHER, Transport
from asr_server.ops.metric_spec import MetricKind, MetricSpec, WorkerEnd
from asr_server.schedule.job import Priority
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd

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
    "state": tuple(dict.fromkeys((*ModelState, *JobState))),
    "shared": ("true", "false"),
    "estimate": tuple(EstimateResult),
    "ending": tuple(ending.value for ending in Ending),
    "outcome": tuple(SessionOutcome),
    "cause": tuple(WorkerEnd),
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
    spec.FREE_AUDIO,
    spec.READY,
    *spec.OF_GATEWAY,
)
