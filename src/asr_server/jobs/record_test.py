"""Records of jobs: what a run, an end and a new server change of them, and what is stored."""

from dataclasses import fields, replace

import pytest

from asr_server.core.errors import InvalidInput
from asr_server.jobs.record import DAMAGED, JobError, JobRecord, RecordFormat, RecordState
from asr_server.recordings.requests import (
    ResponseFormat,
    Result,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)

FORMAT = RecordFormat((TranscriptionRequest, SubtitleRequest, TranslationRequest))
RESULT = Result(b"", "text/plain", "talk.srt")
RUNNING = JobRecord(
    "job_x",
    TranscriptionRequest(),
    1.0,
    RecordState.RUNNING,
    2.0,
    0.0,
    3.0,
    4.0,
    "owner",
    characters=9,
    done_characters=5,
)


def test_a_job_that_runs_again_has_done_nothing():
    """A job that is queued again keeps its request, its owner, its time of creation and its characters."""
    again = RUNNING.queued_again()
    assert (again.state, again.started_at, again.done_s, again.duration_s) == (RecordState.QUEUED, 0.0, 0.0, 0.0)
    assert again.done_characters == 0
    kept = {"id", "request", "created_at", "owner", "characters"}
    assert all(getattr(again, one.name) == getattr(RUNNING, one.name) for one in fields(JobRecord) if one.name in kept)


def test_a_job_that_is_done_is_done_to_its_end():
    """All of the seconds and of the characters of a job that succeeded are done."""
    done = RUNNING.succeeded(RESULT, 6.5)
    assert (done.state, done.done_s, done.duration_s, done.done_characters) == (RecordState.SUCCEEDED, 6.5, 6.5, 9)
    assert (done.result, done.state.over) == (RESULT, True)


def test_a_job_that_failed_says_why_and_has_no_result():
    """A failed job keeps the code, the message and the field of the error, and its progress."""
    failed = replace(RUNNING, result=RESULT).failed(InvalidInput("It is no audio.", code="invalid_audio", param="file"))
    assert (failed.state, failed.result) == (RecordState.FAILED, None)
    assert failed.error == JobError("invalid_audio", "It is no audio.", "file")
    assert (failed.done_s, failed.state.over, RecordState.QUEUED.over) == (3.0, True, False)


@pytest.mark.parametrize(
    "request_",
    [
        TranscriptionRequest(language="German", hotwords=("a", "b"), response_format=ResponseFormat.VERBOSE_JSON),
        SubtitleRequest(prompt="x", format="vtt", max_lines=1),
        TranslationRequest(language="pt-BR", glossary={"kitchen": "cozinha"}, bilingual=True),
    ],
)
def test_what_is_stored_comes_back_with_all_its_fields(request_):
    """Each kind of request as what it was."""
    record = replace(RUNNING, request=request_, error=JobError("a", "b"), expected_bytes=8)
    assert FORMAT.loaded(FORMAT.dumped(record)) == record


def test_voices_of_known_speakers_are_no_part_of_what_is_stored():
    """They are files of their own."""
    request = TranscriptionRequest(speakers=True, known_speaker_names=("Ann",), known_speaker_references=(b"canary",))
    stored = FORMAT.dumped(replace(RUNNING, request=request))
    assert "canary" not in stored
    assert FORMAT.loaded(stored).request.known_speaker_references == (b"",)


@pytest.mark.parametrize("wrong", ["", "[]", "5", "null", "{}", '{"id": "job_x"}', "[" * 100_000])
def test_what_is_no_record_is_damaged(wrong):
    """Any other text raises one of these exceptions."""
    with pytest.raises(DAMAGED):
        FORMAT.loaded(wrong)
