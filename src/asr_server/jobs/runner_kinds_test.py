"""How a job begins, what it is charged for, and what a job about a recording reports."""

import asyncio
import io
from types import SimpleNamespace

import pytest

from asr_server.core.errors import Overloaded
from asr_server.core.transcript import Segment, Transcript
from asr_server.jobs import runner as work
from asr_server.jobs.record import JobRecord, new_id, transcript_loaded
from asr_server.jobs.runner import JobRun, JobRunner, RecordingJobs
from asr_server.recordings.pipeline import SegmentDone, Started
from asr_server.recordings.requests import Result, TranscriptionRequest

RECORD = JobRecord(new_id(), TranscriptionRequest(), 1.0, owner="ann")


async def test_a_job_takes_its_recording_its_clips_and_its_speech():
    """All of that is on the disk, or will be, and counts from the beginning."""
    request = TranscriptionRequest(
        speakers=True, known_speaker_names=("Ann", "Ben"), known_speaker_references=(bytes(300), bytes(20))
    )
    added = []

    async def add(record, recording, size_bytes):
        added.append((record.characters, record.expected_bytes, record.owner, size_bytes))

    jobs = JobRunner((), None, SimpleNamespace(add=add, database=SimpleNamespace(is_shared=False)))
    await jobs.add(request, io.BytesIO(bytes(5_000)), "ann")
    await jobs.add(SimpleNamespace(task="text"), io.BytesIO(bytes(70)), "ann", characters=60, expected_bytes=9_000)
    assert added == [(0, 0, "ann", 5_320), (60, 9_000, "ann", 9_070)]


async def test_who_was_refused_asks_again_after_a_while(monkeypatch):
    """And not at once: a server that is full is not asked as fast as it can refuse."""
    pauses_s, real = [], asyncio.sleep
    monkeypatch.setattr(work, "asyncio", SimpleNamespace(sleep=lambda seconds: (pauses_s.append(seconds), real(0))[1]))
    refusals = [Overloaded("full"), Overloaded("full")]

    async def ask():
        if refusals:
            raise refusals.pop()
        return "words"

    assert await work.when_there_is_room(ask) == "words"
    assert len(pauses_s) == 2
    assert min(pauses_s) > 0


@pytest.mark.parametrize(
    ("claimed_s", "reported"),
    [
        (9.0, [{"done_s": 3.0, "duration_s": 9.0}, {"done_s": 12.0, "duration_s": 12.0}]),  # it is longer than it said
        (
            0.0,
            [{"done_s": 3.0, "duration_s": 0.0}, {"done_s": 12.0, "duration_s": 0.0}],
        ),  # it does not say, so nobody knows
    ],
)
async def test_a_recording_reports_how_far_it_is(claimed_s, reported):
    """Progress is in seconds of the recording, the work is accounted to the owner, and the transcript is kept for other
    formats."""
    seen, found, said = [], [], Transcript("so", "English", 12_500, ())

    async def process(source, request, options, emit):
        seen.append((options.caller, options.owner))
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
    assert (outcome.content, outcome.result.content, outcome.duration_s) == (b"words", b"", 12.5)
    assert seen == [("ann", "ann")]
    assert transcript_loaded(outcome.transcript) == said
