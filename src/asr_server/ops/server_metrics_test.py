"""Names, labels and counts, without a server; with one see E2Etest/contract/test_metrics.py."""

import re

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from asr_server.app import METRICS
from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.ops.metric_spec import MetricKind, Transport
from asr_server.ops.server_metrics import Metrics
from asr_server.schedule.job import Job, Priority
from asr_server.schedule.model import ModelState
from asr_server.schedule.ports import JobEnd


def _series(metrics):
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.fixture
def metrics():
    return Metrics()


def test_names_follow_the_conventions():
    """Our prefix, counters and only they end in `_total`, units are seconds; histograms have buckets that rise."""
    for meter in METRICS:
        assert re.fullmatch(r"asr_[a-z_]+", meter.name)
        assert meter.name.endswith("_total") == (meter.kind is MetricKind.COUNTER), meter.name
        assert not re.search(r"_(ms|minutes|mb|count|sum|bucket)(_|$)", meter.name)
        assert bool(meter.buckets) == (meter.kind is MetricKind.HISTOGRAM), meter.name
        assert list(meter.buckets) == sorted(set(meter.buckets)), meter.name
        assert meter.meaning.endswith(".") or meter.kind is MetricKind.GAUGE, meter.name


def test_apps_do_not_share_their_figures(metrics):
    """A registry each, and none of the library's own."""
    other = Metrics()
    metrics.live.opened()
    key = ("asr_live_sessions_opened_total", ())
    assert (_series(metrics)[key], _series(other)[key]) == (1.0, 0.0)


def test_what_callers_send_makes_no_series(metrics):
    """Unknown methods and codes are one series; before and after them there are as many."""
    metrics.http.request("-", "BREW", 404, 0.1)
    metrics.http.error(Transport.HTTP, "made-up")
    before = set(_series(metrics))
    for word in map(str, range(50)):
        metrics.http.request("-", f"BREW{word}", 404, 0.1)
        metrics.http.error(Transport.HTTP, f"made-up-{word}")
    assert set(_series(metrics)) == before
    assert _series(metrics)["asr_errors_total", (("code", "other"), ("surface", "http"))] == 51


def test_only_finished_work_counts_as_audio_and_tokens(metrics):
    """Work that failed, was left or came too late has an end, and no audio."""
    said = Hypothesis("on", "English", (1, 2, 3), (-0.1,) * 3, Finish.END, 40, 9, 3)
    job = Job(None, Priority.PARTIAL, cost_s=2.5, queued_s=1.0, started_s=5.0, ended_s=5.5, load_s=3.0)
    metrics.engine.started(job)
    for end in JobEnd:
        metrics.engine.ended(job, end, said)
    series = _series(metrics)
    live = (("priority", "partial"),)
    assert series["asr_engine_audio_seconds_total", live] == 2.5
    assert series["asr_queue_wait_seconds_sum", live] == 1.0
    assert series["asr_engine_job_seconds_sum", live] == 0.5
    assert [series["asr_engine_tokens_total", (("kind", kind),)] for kind in ("generated", "audio", "prompt")] == [
        3,
        40,
        9,
    ]
    assert all(series["asr_engine_jobs_total", (("end", end), ("priority", "partial"))] == 1 for end in JobEnd)


def test_loads_and_unloads_are_counted_by_what_they_became(metrics):
    """The beginning of a load is none."""
    for state in (ModelState.LOADING, ModelState.FAILED, ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADED):
        metrics.engine.became(state, 2.0)
    series = _series(metrics)
    assert series["asr_model_loads_total", (("result", "loaded"),)] == 1
    assert series["asr_model_loads_total", (("result", "failed"),)] == 1
    assert series["asr_model_load_seconds_sum", ()] == 4.0
    assert series["asr_model_unloads_total", ()] == 1


def test_a_request_whose_answer_never_began_was_left(metrics):
    """It has no status of its own: it counts as 4xx."""
    metrics.http.request("/v1/audio/transcriptions", "POST", 0, 1.0)
    labels = (("method", "POST"), ("route", "/v1/audio/transcriptions"), ("status", "4xx"))
    assert _series(metrics)["asr_http_requests_total", labels] == 1
