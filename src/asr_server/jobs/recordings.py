"""Jobs about recordings: what the routes for recordings do, for the runner of jobs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import ClassVar

from asr_server.core.errors import AsrError, TranscriptionFailed
from asr_server.features.speech_output.requests import SpeechJobRequest
from asr_server.jobs.work import JobOutcome, JobRun, Progress, when_there_is_room
from asr_server.recordings.pipeline import Emit, Event, RunOptions, SegmentDone, Started
from asr_server.recordings.processor import RequestProcessor
from asr_server.schedule.job import Priority


class RecordingJobs:
    """Processes recordings as bulk work."""

    unexpected_error: ClassVar[type[AsrError]] = TranscriptionFailed

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    async def process(self, run: JobRun) -> JobOutcome:
        """The answer that the route gives. Raises as `JobWork`."""
        record = run.record
        options = RunOptions(Priority.BULK, run.timeout_s, caller=record.owner, owner=record.owner)
        request = await asyncio.to_thread(run.store.request, record)
        assert not isinstance(request, SpeechJobRequest)
        with run.store.recording(record.id) as recording:
            work = partial(self._processor.process, recording, request, options, _reporting(run))
            result, transcript = await when_there_is_room(work)
        return JobOutcome(replace(result, content=b""), result.content, transcript.duration_ms / 1000)


def _reporting(run: JobRun) -> Emit:
    claimed_s = 0.0

    async def report(event: Event) -> None:
        nonlocal claimed_s
        if isinstance(event, Started):
            claimed_s = event.claimed_s
        elif isinstance(event, SegmentDone):
            done_s = event.segment.end_ms / 1000
            run.report(Progress(done_s, max(done_s, claimed_s) if claimed_s else 0.0))

    return report
