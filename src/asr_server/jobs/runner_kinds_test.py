"""Jobs about recordings: how they are processed, and what they report."""

import asyncio
import io
from types import SimpleNamespace

import pytest

from asr_server.core.errors import Overloaded
from asr_server.core.transcript import Segment, Transcript
from asr_server.jobs.record import JobRecord, new_id, transcript_loaded
from asr_server.jobs.runner import JobRun, RecordingJobs
from asr_server.recordings.pipeline import RunOptions, SegmentDone, Started
from asr_server.recordings.requests import Result, TranscriptionRequest
from asr_server.schedule.job import Priority

RECORD = JobRecord(new_id(), TranscriptionRequest(), 1.0, owner="ann")


@pytest.mark.parametrize(
    ("claimed_s", "reported"),
    [
        (9.0, [{"done_s": 3.0, "duration_s": 9.0}, {"done_s": 12.0, "duration_s": 12.0}]),  # it is longer than it said
        (0.0, [{"done_s": 3.0, "duration_s": 0.0}, {"done_s": 12.0, "duration_s": 0.0}]),  # it does not say
    ],
)
async def test_a_recording_reports_how_far_it_is(claimed_s, reported, monkeypatch):
    """The work is bulk work of the owner, asks a full server again after a while, and keeps the transcript."""
    pauses_s, real = [], asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: (pauses_s.append(seconds), real(0))[1])
    seen, found, said = [], [], Transcript("so", "English", 12_500, ())

    async def process(source, request, options, emit):
        seen.append(options)
        if len(seen) < 3:
            raise Overloaded("full")
        await emit(Started(claimed_s))
        for end_ms in (3_000, 12_000):
            await emit(SegmentDone(Segment(0, end_ms, "so", "English", (), 0.0, 0.0)))
        return Result(b"words", "text/plain"), said

    jobs = RecordingJobs(SimpleNamespace(process=process))
    run = JobRun(
        RECORD, RECORD.request, io.BytesIO(b"audio"), io.BytesIO, 50.0, lambda **progress: found.append(progress)
    )
    outcome = await jobs.process(run)
    assert found == reported
    assert (outcome.content.read(), outcome.result.content, outcome.duration_s) == (b"words", b"", 12.5)
    assert seen == [RunOptions(Priority.BULK, 50.0, caller="ann", owner="ann", keeps_words=True)] * 3
    assert len(pauses_s) == 2
    assert min(pauses_s) > 0
    assert transcript_loaded(outcome.transcript) == said
