"""Records of jobs as they are stored."""

from dataclasses import replace

import pytest

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
TIMES_S = (2.0, 0.0, 3.0, 4.0)
COUNTED = {"characters": 9, "done_characters": 5}
RUNNING = JobRecord("job_x", TranscriptionRequest(), 1.0, RecordState.RUNNING, *TIMES_S, "owner", **COUNTED)


@pytest.mark.parametrize(
    "request_",
    [
        TranscriptionRequest(language="German", hotwords=("a", "b"), response_format=ResponseFormat.VERBOSE_JSON),
        SubtitleRequest(prompt="x", format="vtt", max_lines=1),
        TranslationRequest(language="pt-BR", glossary={"kitchen": "cozinha"}, bilingual=True),
    ],
)
def test_what_is_stored_comes_back_with_all_its_fields(request_):
    record = replace(RUNNING, request=request_, error=JobError("a", "b"), expected_bytes=8)
    assert FORMAT.loaded(FORMAT.dumped(record)) == record


def test_voices_of_known_speakers_are_no_part_of_what_is_stored():
    request = TranscriptionRequest(speakers=True, known_speaker_names=("Ann",), known_speaker_references=(b"canary",))
    stored = FORMAT.dumped(replace(RUNNING, request=request))
    assert "canary" not in stored
    assert FORMAT.loaded(stored).request.known_speaker_references == (b"",)


@pytest.mark.parametrize("wrong", ["", "[]", "5", "null", "{}", '{"id": "job_x"}', "[" * 100_000])
def test_what_is_no_record_is_damaged(wrong):
    with pytest.raises(DAMAGED):
        FORMAT.loaded(wrong)
