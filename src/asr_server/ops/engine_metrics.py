"""Metrics of the engine thread.

The engine thread calls these methods, so each takes microseconds and raises nothing.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from asr_server.core.metrics import with_series
from asr_server.engine.core import log_state
from asr_server.engine.protocol import Hypothesis
from asr_server.schedule.job import AnyJob, JobEnd, Priority, SchedulerObserver
from asr_server.schedule.model import ModelState

_WAIT_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_JOB_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0)
_LOAD_S = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class EngineMetrics(SchedulerObserver):
    """Counters and histograms of the spans, steps and loads of one app."""

    def __init__(self, registry: CollectorRegistry) -> None:
        priorities = [_label(priority) for priority in Priority]
        self._wait = Histogram(
            "asr_queue_wait_seconds",
            "Wait of a span, without loading.",
            ["priority"],
            registry=registry,
            buckets=_WAIT_S,
        )
        self._rows = Histogram(
            "asr_engine_batch_rows", "Rows in the batch, at each step.", registry=registry, buckets=_ROWS
        )
        self._steps = Histogram(
            "asr_engine_step_seconds",
            "Duration of a step.",
            registry=registry,
            buckets=_STEP_S,
        )
        self._jobs = Counter(
            "asr_engine_jobs_total",
            "Ended spans: `done`, `failed`, `left` (caller disconnected), `late` (deadline passed).",
            ["priority", "end"],
            registry=registry,
        )
        self._job_seconds = Histogram(
            "asr_engine_job_seconds",
            "Time of a transcribed span in the batch.",
            ["priority"],
            registry=registry,
            buckets=_JOB_S,
        )
        self._audio = Counter(
            "asr_engine_audio_seconds_total",
            "Audio of transcribed spans, also of partials.",
            ["priority"],
            registry=registry,
        )
        self._tokens = Counter(
            "asr_engine_tokens_total",
            "Tokens of transcribed spans.",
            ["kind"],
            registry=registry,
        )
        for metric in (self._wait, self._job_seconds, self._audio):
            with_series(metric, priorities)
        with_series(self._jobs, priorities, JobEnd)
        with_series(self._tokens, ("generated", "audio", "prompt"))

    def started(self, job: AnyJob) -> None:
        self._wait.labels(_label(job.priority)).observe(job.waited_s)

    def ended(self, job: AnyJob, end: JobEnd, value: Any = None) -> None:
        priority = _label(job.priority)
        self._jobs.labels(priority, end).inc()
        if end is not JobEnd.DONE:
            return
        self._job_seconds.labels(priority).observe(job.ended_s - job.started_s)
        self._audio.labels(priority).inc(job.cost_s)
        if isinstance(value, Hypothesis):
            self._tokens.labels("generated").inc(len(value.ids))
            self._tokens.labels("audio").inc(value.audio_tokens)
            self._tokens.labels("prompt").inc(value.prompt_tokens)

    def stepped(self, rows: int, took_s: float) -> None:
        self._rows.observe(rows)
        self._steps.observe(took_s)


class ModelMetrics:
    """Counters and histograms of the loads of models."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loads = Counter("asr_model_loads_total", "Loads of models.", ["result"], registry=registry)
        self._unloads = Counter(
            "asr_model_unloads_total",
            "Unloads of models.",
            registry=registry,
        )
        self._load_seconds = Histogram(
            "asr_model_load_seconds",
            "Duration of a load.",
            registry=registry,
            buckets=_LOAD_S,
        )
        with_series(self._loads, (ModelState.LOADED, ModelState.FAILED))

    def on_state(self, model: str, state: ModelState, took_s: float) -> None:
        log_state(model, state, took_s)
        match state:
            case ModelState.LOADED | ModelState.FAILED:
                self._loads.labels(state).inc()
                self._load_seconds.observe(took_s)
            case ModelState.UNLOADED:
                self._unloads.inc()


def _label(priority: Priority) -> str:
    return priority.name.lower()
