"""Records of jobs as they are stored."""

from dataclasses import replace

import pytest

from asr_server.jobs.record import DAMAGED, JobError, JobRecord, RecordFormat, RecordState
from asr_server.recordings.requests import ResponseFormat, SubtitleRequest, TranscriptionRequest, TranslationRequest

FORMAT = RecordFormat((TranscriptionRequest, SubtitleRequest, TranslationRequest))


@pytest.mark.parametrize(
    "request_",
    [
        TranscriptionRequest(language="German", hotwords=("a", "b"), response_format=ResponseFormat.VERBOSE_JSON),
        SubtitleRequest(prompt="x", format="vtt", max_lines=1),
        TranslationRequest(language="pt-BR", glossary={"kitchen": "cozinha"}, bilingual=True),
    ],
)
def test_what_is_stored_comes_back_with_all_its_fields(request_):
    record = JobRecord("job_x", request_, 1.0, RecordState.RUNNING, 2.0, 0.0, 3.0, 4.0, "owner", characters=9)
    record = replace(record, error=JobError("a", "b"), expected_bytes=8, done_characters=5)
    assert FORMAT.loaded(FORMAT.dumped(record)) == record


@pytest.mark.parametrize("wrong", ["", "[]", "5", "null", "{}", '{"id": "job_x"}', "[" * 100_000])
def test_what_is_no_record_is_damaged(wrong):
    with pytest.raises(DAMAGED):
        FORMAT.loaded(wrong)
