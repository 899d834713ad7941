"""Counts of spans and loads without a server. E2Etest/contract/test_metrics.py has one."""

from prometheus_client import CollectorRegistry

from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.ops.engine_metrics import EngineMetrics
from asr_server.schedule.job import Job, JobEnd, Priority


def test_only_finished_work_counts_as_audio_and_tokens():
    """Work that failed, was cancelled or came too late counts as ended, without audio."""
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry)
    said = Hypothesis("on", "English", (1, 2, 3), (-0.1,) * 3, Finish.END, 40, 9, 3)
    job = Job(None, Priority.PARTIAL, cost_s=2.5, queued_s=1.0, started_s=5.0, ended_s=5.5, load_s=3.0)
    metrics.started(job)
    for end in JobEnd:
        metrics.ended(job, end, said)
    live, value = {"priority": "partial"}, registry.get_sample_value
    assert value("asr_engine_audio_seconds_total", live) == 2.5
    assert value("asr_queue_wait_seconds_sum", live) == 1.0
    assert value("asr_engine_job_seconds_sum", live) == 0.5
    tokens = [value("asr_engine_tokens_total", {"kind": kind}) for kind in ("generated", "audio", "prompt")]
    assert tokens == [3, 40, 9]
    assert [value("asr_engine_jobs_total", {"end": end, **live}) for end in JobEnd] == [1] * len(JobEnd)
