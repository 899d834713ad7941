"""The bounds of documents: their length, and the time for which a caller waits."""

import pytest

from asr_server.core.conftest import raises
from asr_server.core.errors import DeadlineExceeded
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.documents.route import write_transcript
from asr_server.recordings.requests import ResponseFormat


def _transcript(text):
    return Transcript(text, "English", 1_000, (Segment(0, 1_000, text, "English", (), 0.0, 0.0),))


@pytest.mark.parametrize("kind", [ResponseFormat.MARKDOWN, ResponseFormat.DOCX])
async def test_a_transcript_that_is_too_long_is_refused(kind):
    with raises("invalid_value", match="1_000_000 characters"):
        await write_transcript(_transcript("word " * 200_001), kind, 60.0)


async def test_no_caller_waits_longer_than_its_limit():
    with pytest.raises(DeadlineExceeded, match="within 0 s"):
        await write_transcript(_transcript("word " * 150_000), ResponseFormat.DOCX, 0.001)
