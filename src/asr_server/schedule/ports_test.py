"""Tests of `ObserverByItem`: each feature is told about its own jobs on an engine thread that features share."""

from asr_server.schedule.job import Job
from asr_server.schedule.ports import JobEnd, ObserverByItem, SchedulerObserver


class Sentence(str):
    """The item of a job of a feature."""


class Told(SchedulerObserver):
    def __init__(self):
        self.jobs, self.steps = [], 0

    def started(self, job):
        self.jobs.append(("started", job.item))

    def ended(self, job, end, value=None):
        self.jobs.append((end, job.item))

    def stepped(self, rows, took_s):
        self.steps += rows


def test_jobs_of_a_feature_are_reported_apart_from_recordings():
    """Seconds of speech do not count as seconds of recordings."""
    engine, speech = Told(), Told()
    both = ObserverByItem(engine)
    both.add(Sentence, speech)
    for item in (Sentence("one"), "a recording"):
        both.started(Job(item))
        both.ended(Job(item), JobEnd.DONE)
    both.stepped(2, 0.1)
    assert [end for end, _ in engine.jobs] == [end for end, _ in speech.jobs] == ["started", JobEnd.DONE]
    assert {item for _, item in engine.jobs} == {"a recording"}
    assert engine.steps == 2
