"""Jobs that speak a text. They write its samples to a file, part by part, and then encode it in the requested format.

Files list their chapters at the beginning, so nothing is encoded before everything is spoken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import BinaryIO, ClassVar, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import AsrError, DeadlineExceeded, EncoderUnavailable, SpeechFailed
from asr_server.features.speech_output.encoding.formats import ChapterMark, EncodingOptions, SpeechFormat, with_length
from asr_server.features.speech_output.requests import MAX_JOB_CHARS, Chapter, SpeechJobBody, SpeechJobRequest
from asr_server.features.speech_output.script import SpeechScript, spoken_s
from asr_server.features.speech_output.synthesis import (
    AudioChunk,
    SentenceBegun,
    SpeechEvent,
    SpeechProcessor,
)
from asr_server.jobs.record import JobRequest
from asr_server.jobs.route import KEY_PARAMETER, JobBody, accepted, idempotency_key, job_fields
from asr_server.jobs.runner import JobOutcome, JobRun, when_there_is_room
from asr_server.net import body
from asr_server.net.errors import ErrorBody
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.requests import Result
from asr_server.schedule.job import Priority
from asr_server.services import CallerDep, ServicesDep
from asr_server.text.sentences import TextSpan, sentences

# Silence before a chapter, in addition to the pause between two sentences; at speed 1.
_CHAPTER_PAUSE_MS = 1_000
# A lost process is started again. A sentence that fails this often would fail again.
_ATTEMPTS = 3
# The beginning of the text, which decides its language.
_BEGINNING_CHARS = 20_000
# A part is a whole number of sentences; a failed part is spoken again.
PART_S = 120.0
_BLOCK_BYTES = 480_000
_SAMPLE_BYTES = 2
_LOSSLESS = (SpeechFormat.WAV, SpeechFormat.PCM, SpeechFormat.FLAC)
_PCM_BYTES_PER_S, _LOSSY_BYTES_PER_S = SPEECH_RATE * _SAMPLE_BYTES, 8_000
_HEADER_BYTES = 64

T = TypeVar("T")
_stored_chapters = TypeAdapter(tuple[Chapter, ...])


@dataclass(frozen=True, slots=True)
class TextPart:
    """Some sentences of a chapter."""

    chapter: int
    begin: int  # number of characters in the chapters before this one
    spans: list[TextSpan]  # in the text of the chapter


def text_parts(chapters: tuple[Chapter, ...], language: str) -> list[TextPart]:
    """Return all sentences, in parts of about two minutes. A part ends with its chapter."""
    found: list[TextPart] = []
    begin = 0
    for number, chapter in enumerate(chapters):
        part_s = PART_S
        for span in sentences(chapter.text, language):
            if part_s >= PART_S:
                found.append(TextPart(number, begin, []))
                part_s = 0.0
            found[-1].spans.append(span)
            part_s += spoken_s(span.text)
        begin += len(chapter.text)
    return found


def beginning(chapters: tuple[Chapter, ...]) -> str:
    return "".join(chapter.text for chapter in chapters)[:_BEGINNING_CHARS]


def expected_bytes(request: SpeechJobRequest, chapters: tuple[Chapter, ...]) -> int:
    """Return about how many bytes the samples and the result of all chapters take."""
    duration_s = sum(spoken_s(chapter.text) for chapter in chapters) / request.speed
    result_bytes_per_s = _PCM_BYTES_PER_S if request.response_format in _LOSSLESS else _LOSSY_BYTES_PER_S
    return int(duration_s * (_PCM_BYTES_PER_S + result_bytes_per_s))


class SpeechJobs:
    """Speaks texts as bulk work."""

    request_types: ClassVar[tuple[type[JobRequest], ...]] = (SpeechJobRequest,)
    unexpected_error: ClassVar[type[AsrError]] = SpeechFailed

    def __init__(self, speech: SpeechProcessor) -> None:
        self._speech = speech

    async def process(self, run: JobRun) -> JobOutcome:
        """Return the speech as the outcome of the job. Raises as `JobKind`."""
        try:
            async with asyncio.timeout(run.timeout_s):
                return await self._process(run)
        except TimeoutError:
            raise DeadlineExceeded(f"The job took longer than {run.timeout_s:g} s.") from None

    async def _process(self, run: JobRun) -> JobOutcome:
        request = run.request
        assert isinstance(request, SpeechJobRequest)
        chapters = _stored_chapters.validate_json(await asyncio.to_thread(run.recording.read))
        samples_request = request.model_copy(update={"response_format": SpeechFormat.PCM})
        how = await in_thread(self._speech.delivery, samples_request, beginning(chapters))
        with await asyncio.to_thread(run.new_file) as file:
            spoken = _SpokenParts(run, file, request)
            for part in await in_thread(text_parts, chapters, how.language):
                script = SpeechScript(how, 0, part.spans, priority=Priority.BULK, timeout_s=run.timeout_s)
                await _again_if_lost(partial(spoken.speak, self._speech, part, script))
            audio_format = request.response_format
            options = EncodingOptions(audio_format, pause_ms=0, trim=False, chapters=spoken.marks(chapters))
            encoded = await asyncio.to_thread(run.new_file)
            samples = await _again_if_lost(partial(self._encode, file, encoded, options))
            await asyncio.to_thread(_state_length, encoded, audio_format, samples)
        result = Result(b"", audio_format.media_type, file_name=f"speech.{audio_format}")
        return JobOutcome(result, encoded, samples / SPEECH_RATE)

    async def _encode(self, spoken: BinaryIO, file: BinaryIO, options: EncodingOptions) -> int:
        """Encode all samples into the file. Returns their number."""
        spoken.seek(0)
        await asyncio.to_thread(_cut, file, 0)
        async with self._speech.encoder.stream(options) as encoded:
            while data := await asyncio.to_thread(spoken.read, _BLOCK_BYTES):
                block = np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32_768)
                await asyncio.to_thread(file.write, await encoded.push(block))
            await asyncio.to_thread(file.write, await encoded.finish())
            return encoded.samples


class _SpokenParts:
    """The samples of all parts so far, with the pauses between them."""

    def __init__(self, run: JobRun, file: BinaryIO, request: SpeechJobRequest) -> None:
        self._run, self._file, self._request = run, file, request
        self._samples = 0
        self._starts: dict[int, int] = {}  # the first sample of each chapter

    async def speak(self, speech: SpeechProcessor, part: TextPart, script: SpeechScript) -> None:
        """Add a part, overwriting anything that a failed attempt left of it."""
        await asyncio.to_thread(_cut, self._file, self._samples * _SAMPLE_BYTES)
        pause = self._pause_before(part)
        await asyncio.to_thread(self._file.write, bytes(pause * _SAMPLE_BYTES))
        samples = begin = self._samples + pause

        async def take(event: SpeechEvent) -> None:
            nonlocal samples
            match event:
                case SentenceBegun(start=start):
                    self._report(samples, part.begin + start)
                case AudioChunk(data=data):
                    await asyncio.to_thread(self._file.write, data)
                    samples += len(data) // _SAMPLE_BYTES

        await speech.speak(script, take)
        self._starts.setdefault(part.chapter, begin)
        self._samples = samples
        self._report(samples, part.begin + part.spans[-1].end)

    def marks(self, chapters: tuple[Chapter, ...]) -> tuple[ChapterMark, ...]:
        """Return where chapters begin and end, or nothing if there is only one."""
        if len(self._starts) < 2:
            return ()
        ends = [*list(self._starts.values())[1:], self._samples]
        return tuple(
            ChapterMark(start, end, chapters[number].title)
            for (number, start), end in zip(self._starts.items(), ends, strict=True)
        )

    def _pause_before(self, part: TextPart) -> int:
        if not self._starts:
            return 0
        pause_ms = self._request.pause_ms + (0 if part.chapter in self._starts else _CHAPTER_PAUSE_MS)
        return round(pause_ms * SPEECH_RATE / 1000 / self._request.speed)

    def _report(self, samples: int, done_characters: int) -> None:
        done_s = samples / SPEECH_RATE
        duration_s = done_s * self._run.record.characters / done_characters if done_characters else 0.0
        self._run.report(done_s=done_s, duration_s=duration_s, done_characters=done_characters)


def _cut(file: BinaryIO, size_bytes: int) -> None:
    file.seek(size_bytes)
    file.truncate()


async def _again_if_lost(work: Callable[[], Awaitable[T]]) -> T:
    for _ in range(1, _ATTEMPTS):
        with suppress(SpeechFailed, EncoderUnavailable):
            return await when_there_is_room(work)
    return await when_there_is_room(work)


def _state_length(file: BinaryIO, audio_format: SpeechFormat, samples: int) -> None:
    """Write the length into the header, if the format has a place for it and it fits."""
    file.seek(0)
    header = file.read(_HEADER_BYTES)
    file.seek(0)
    with suppress(ValueError):  # a WAV file over 4 GiB: without a length, it is read to its end
        file.write(with_length(audio_format, header, samples))


router = APIRouter(prefix="/v1/audio/speech/jobs", tags=["jobs"])
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for titles and fields.
_MAX_BYTES = 12 * MAX_JOB_CHARS + 2**20


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    responses={status: {"model": ErrorBody} for status in (400, 404, 413, 422, 429, 501, 503)},
    openapi_extra={"parameters": [KEY_PARAMETER], **body.json_of(SpeechJobBody)},
)
async def create_speech_job(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Accept a text of up to 2,000,000 characters that is spoken when there is time. Its state, its progress and its
    audio are those of the job, below `/v1/jobs`."""
    services.of(SpeechProcessor).check()
    key = idempotency_key(request)
    async with services.jobs.room_for_text(caller.owner, caller.share, key):
        values = await body.read_json(request, _MAX_BYTES)
        sent = await in_thread(body.validated, SpeechJobBody, values)
        services.catalog.find_speech(sent.model)
        wanted, chapters = await in_thread(sent.stored)
        await in_thread(services.of(SpeechProcessor).delivery, wanted, beginning(chapters))
        size_bytes = await in_thread(expected_bytes, wanted, chapters)
        stored = BytesIO(await in_thread(_stored_chapters.dump_json, chapters))
        fields = job_fields(values, services)
        fields |= {"characters": sum(len(chapter.text) for chapter in chapters), "expected_bytes": size_bytes}
        return accepted(await services.jobs.add(wanted, stored, caller.owner, key=key, **fields))
