"""Writes documents in a process of their own, so that live sessions do not wait for the interpreter meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict

from loguru import logger

from asr_server.core.errors import DeadlineExceeded, DocumentUnavailable, InvalidValue, UnsupportedValue
from asr_server.core.transcript import Transcript
from asr_server.features.documents import document, word
from asr_server.features.documents.document import Document
from asr_server.processes.caller_work import FairShares, in_thread
from asr_server.processes.worker_process import WorkerClient, WorkerProcess
from asr_server.recordings.pipeline import TranscriptWriter
from asr_server.recordings.render import paragraphs_of
from asr_server.recordings.requests import RecordingRequest, ResponseFormat, Result, TranscriptionRequest

# A day of speech.
MAX_CHARS = 1_000_000
_CHAR_S = 0.0005
MEDIA_TYPES = {
    ResponseFormat.MARKDOWN: "text/markdown; charset=utf-8",
    ResponseFormat.DOCX: "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
_SUFFIXES = {ResponseFormat.MARKDOWN: "md"}


def check_length(chars: int) -> None:
    """Raise `InvalidValue` for more characters than a document has."""
    if chars > MAX_CHARS:
        raise InvalidValue(f"The text is longer than the {MAX_CHARS:_} characters of a document.")


class _DocumentProcess(WorkerProcess):
    module = "asr_server.features.documents.worker"
    purpose = "writes documents"
    unavailable = DocumentUnavailable


class Documents(WorkerClient[_DocumentProcess], TranscriptWriter):
    """Writes the documents of all requests, one at a time, in turns of the callers. For one event loop."""

    def __init__(self, idle_s: float) -> None:
        super().__init__(idle_s)
        # A place for the document that is written, and one for another caller's, which is next.
        self._places = FairShares(1, 2)

    def check(self, request: RecordingRequest) -> None:
        """Raise `UnsupportedValue` for a stream, as a document is written as a whole, and without what writes DOCX."""
        is_stream = isinstance(request, TranscriptionRequest) and request.stream
        if is_stream and request.output.response_format.is_document:
            raise UnsupportedValue(f"'{request.output.response_format}' is not streamed.", param="stream")
        if isinstance(request, TranscriptionRequest) and request.output.response_format is ResponseFormat.DOCX:
            word.check()

    async def answer(
        self, transcript: Transcript, response_format: ResponseFormat, limit_s: float, caller: str
    ) -> Result:
        """Return the document of a transcript. Raises as `turn` and `written` do."""
        async with self.turn(caller, limit_s):
            # In a thread: a long text takes a tenth of a second, and live sessions share the event loop.
            paragraphs = await in_thread(paragraphs_of, transcript)
            return await self.written(document.of(paragraphs), response_format)

    @asynccontextmanager
    async def turn(self, caller: str, limit_s: float) -> AsyncGenerator[None, None]:
        """Wait for the caller's turn and hold it until the block ends. Raises `DeadlineExceeded` after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s), self._places.taken(caller):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"The document was not written within {limit_s:.0f} s.") from None

    async def written(self, content: Document, response_format: ResponseFormat) -> Result:
        """Return the file, within a `turn`.

        Raises `InvalidValue` for more than `MAX_CHARS`, and `DocumentUnavailable`.
        """
        chars = sum(map(len, content.texts))
        check_length(chars)
        self.idle.hold()
        try:
            process = await self._running()
            request = {"format": response_format.value, "document": asdict(content)}
            answer = await process.request(request, work_s=chars * _CHAR_S)
        finally:
            self.idle.release()
        if "error" in answer.content:
            logger.error("a document cannot be written", error=answer.content["error"])
            raise DocumentUnavailable("The document cannot be written.")
        suffix = _SUFFIXES.get(response_format, response_format.value)
        return Result(answer.data, MEDIA_TYPES[response_format], file_name=f"transcript.{suffix}")

    async def _start(self) -> _DocumentProcess:
        return await _DocumentProcess.start()
