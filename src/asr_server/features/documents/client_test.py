"""The process that writes documents."""

import asyncio
import io

import docx
import pytest

from asr_server.core.errors import DeadlineExceeded, DocumentUnavailable, InvalidValue, UnsupportedValue
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.documents import word
from asr_server.features.documents.client import MAX_CHARS, Documents
from asr_server.features.documents.document import Document, DocumentPart
from asr_server.recordings.requests import OutputOptions, ResponseFormat, TranscriptionRequest


def _run(use):
    async def run():
        documents = Documents(0.0)
        try:
            return await use(documents)
        finally:
            await documents.close()

    return asyncio.run(run())


def test_a_transcript_becomes_a_file_with_a_name():
    """Files have paragraphs, and each format has its type."""
    spoken = Segment(0, 1_000, "Yes.", "English", (), 0.0, 0.0), Segment(4_000, 5_000, "No.", "English", (), 0.0, 0.0)
    transcript = Transcript("Yes. No.", "English", 5_000, spoken)

    async def use(documents):
        wanted = ResponseFormat.MARKDOWN, ResponseFormat.DOCX
        return [await documents.answer(transcript, one, 60, "") for one in wanted]

    plain, file = _run(use)
    assert (plain.content, plain.file_name) == (b"**0:00** Yes.\n\n**0:04** No.\n", "transcript.md")
    assert [one.text for one in docx.Document(io.BytesIO(file.content)).paragraphs] == ["0:00  Yes.", "0:04  No."]
    assert (file.file_name, file.media_type.rpartition(".")[2]) == ("transcript.docx", "document")


def test_a_text_that_is_too_long_is_refused_before_a_process_is_started():
    async def use(documents):
        with pytest.raises(InvalidValue, match="1_000_000 characters"):
            await documents.written(Document([DocumentPart(0, "", "a" * MAX_CHARS)]), ResponseFormat.DOCX)
        assert documents.pid is None

    _run(use)


def test_a_process_that_is_killed_is_told_of_and_started_again():
    async def use(documents):
        long = Document([DocumentPart(0, "", "one two three " * 20)] * 300)
        writing = asyncio.create_task(documents.written(long, ResponseFormat.DOCX))
        await documents._running()  # it has started, and is writing or about to
        await asyncio.sleep(0)
        await documents.close_idle()
        with pytest.raises(DocumentUnavailable):
            await writing
        assert (await documents.written(Document([]), ResponseFormat.MARKDOWN)).content == b""

    _run(use)


def test_callers_take_turns_and_nobody_waits_longer_than_allowed():
    """A caller with many documents keeps another one waiting for one of them."""
    order = []

    async def use(documents):
        async def write(caller):
            async with documents.turn(caller, 60):
                order.append(caller)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            for caller in ("many", "many", "many", "one"):
                group.create_task(write(caller))
        async with documents.turn("many", 60):
            with pytest.raises(DeadlineExceeded):
                async with documents.turn("many", 0.01):
                    pass

    _run(use)
    assert order[:2] == ["many", "one"]
    assert len(order) == 4


def test_docx_without_its_package_is_refused_with_what_repairs_it(monkeypatch):
    """Before the recording is transcribed, and when a document is written."""
    monkeypatch.setattr(word, "find_spec", lambda name: None)
    request = TranscriptionRequest(output=OutputOptions(ResponseFormat.DOCX))
    for refused in (lambda: Documents(0.0).check(request), lambda: word.write(Document([]))):
        with pytest.raises(UnsupportedValue, match=r"pip install '\.\[documents\]'"):
            refused()
