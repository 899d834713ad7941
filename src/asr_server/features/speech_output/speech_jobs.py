"""Jobs that speak a text: part by part to a file of samples that outlives the server, and then to the file asked for.

The samples of a part depend on its text and the request alone, so that a job that was interrupted goes on at the first
part that was not finished, and its result is that of one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import BinaryIO, ClassVar, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from numpy.typing import NDArray

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import AsrError, DeadlineExceeded, EncoderUnavailable, SpeechFailed
from asr_server.features.speech_output.chapters import Chapter
from asr_server.features.speech_output.encoding.formats import ChapterMark, EncodingOptions, SpeechFormat
from asr_server.features.speech_output.encoding.headers import with_length
from asr_server.features.speech_output.fields import MAX_JOB_CHARS, SpeechJobBody, chapters_of, speech_job_request
from asr_server.features.speech_output.requests import (
    AudioChunk,
    SentenceBegun,
    SpeechEvent,
    SpeechJobRequest,
    SpeechRequest,
)
from asr_server.features.speech_output.script import SpeechScript, script_of, spoken_s
from asr_server.features.speech_output.synthesis import SpeechProcessor, SpeechRun
from asr_server.features.speech_output.text_parts import TextPart, dumped, loaded, text_parts
from asr_server.jobs.record import JobRequest
from asr_server.jobs.route import KEY_PARAMETER, JobBody, accepted, idempotency_key, job_options
from asr_server.jobs.runner import JobOutcome, JobProgress, JobRun, TextSize, when_there_is_room
from asr_server.jobs.store import SAMPLE_BYTES, JobPart, JobParts
from asr_server.net import body
from asr_server.net.errors import ErrorBody
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.requests import Result
from asr_server.schedule.job import Priority
from asr_server.services import CallerDep, ServicesDep

# Silence before a chapter, in addition to that between two sentences; at speed 1.
_CHAPTER_PAUSE_MS = 1_000
# A process that was lost is started anew. A sentence that fails this often will fail again.
_ATTEMPTS = 3
# The part of the text by which its language is found.
_BEGINNING_CHARS = 20_000
_LOSSLESS = (SpeechFormat.WAV, SpeechFormat.PCM, SpeechFormat.FLAC)
_PCM_BYTES_PER_S, _LOSSY_BYTES_PER_S = SPEECH_RATE * SAMPLE_BYTES, 8_000
_HEADER_BYTES = 64

T = TypeVar("T")


def beginning(request: SpeechJobRequest, chapters: tuple[Chapter, ...]) -> SpeechRequest:
    """Return a request with the beginning of the text, by which its language is found."""
    text = ""
    for chapter in chapters:
        text += chapter.text[: _BEGINNING_CHARS - len(text)]
    return request.of(text)


def text_size(request: SpeechJobRequest, chapters: tuple[Chapter, ...]) -> TextSize:
    """Return the size of all chapters together."""
    duration_s = sum(spoken_s(chapter.text) for chapter in chapters) / request.speed
    result_bytes_per_s = _PCM_BYTES_PER_S if request.format in _LOSSLESS else _LOSSY_BYTES_PER_S
    expected_bytes = int(duration_s * (_PCM_BYTES_PER_S + result_bytes_per_s))
    return TextSize(sum(len(chapter.text) for chapter in chapters), expected_bytes)


class SpeechJobs:
    """Speaks texts as bulk work."""

    request_types: ClassVar[tuple[type[JobRequest], ...]] = (SpeechJobRequest,)
    unexpected_error: ClassVar[type[AsrError]] = SpeechFailed

    def __init__(self, speech: SpeechProcessor) -> None:
        self._speech = speech

    async def process(self, run: JobRun) -> JobOutcome:
        """The speech, as the result in the store. Raises as `JobKind`."""
        try:
            async with asyncio.timeout(run.timeout_s):
                return await self._process(run)
        except TimeoutError:
            raise DeadlineExceeded("The job took longer than JOB_TIMEOUT.") from None

    async def _process(self, run: JobRun) -> JobOutcome:
        request, identity = run.record.request, run.record.id
        assert isinstance(request, SpeechJobRequest)
        chapters = await asyncio.to_thread(_read, run)
        spoken_request = replace(beginning(request, chapters), format=SpeechFormat.PCM)
        how = self._speech.delivery(spoken_request)
        parts = await in_thread(text_parts, chapters, how.language)
        with await asyncio.to_thread(run.store.parts, identity) as spoken:
            for number, part in enumerate(parts):
                script = await in_thread(script_of, how, part.text)
                if [one.key for one in spoken.finished[number : number + 1]] != [script.key]:
                    await asyncio.to_thread(spoken.cut, number)
                    in_progress = _PartInProgress(run, spoken, part, script)
                    await _again_if_lost(partial(in_progress.speak, self._speech))
                    await run.store.keep_parts(identity, spoken)
            await asyncio.to_thread(spoken.cut, len(parts))
            book = _Book(request, chapters, parts, spoken)
            with await asyncio.to_thread(run.store.new_result, identity) as file:
                samples = await _again_if_lost(partial(self._encode, book, file))
                await asyncio.to_thread(_state_length, file, request.format, samples)
                await asyncio.to_thread(run.store.keep_result, identity, file)
        name = f"speech.{request.format}"
        return JobOutcome(Result(b"", request.format.media_type, file_name=name), None, samples / SPEECH_RATE)

    async def _encode(self, book: _Book, file: BinaryIO) -> int:
        """Encode the speech into the file. Returns the number of samples in it."""
        await asyncio.to_thread(file.truncate, 0)
        file.seek(0)
        options = EncodingOptions(book.request.format, pause_ms=0, trim=False, chapters=book.marks())
        async with self._speech.encoder.stream(options) as encoded:
            blocks = book.sound()
            while (block := await asyncio.to_thread(next, blocks, None)) is not None:
                await asyncio.to_thread(file.write, await encoded.push(block))
            await asyncio.to_thread(file.write, await encoded.finish())
            return encoded.samples


@dataclass(frozen=True, slots=True)
class _PartInProgress:
    run: JobRun
    spoken: JobParts
    part: TextPart
    script: SpeechScript

    async def speak(self, speech: SpeechProcessor) -> None:
        """Speak the part and keep it. An unfinished part of an earlier attempt is removed."""
        await asyncio.to_thread(self.spoken.cut, len(self.spoken.finished))
        samples = self.spoken.samples

        async def take(event: SpeechEvent) -> None:
            nonlocal samples
            match event:
                case SentenceBegun(start=start):
                    self._report(samples, self.part.begin + start)
                case AudioChunk(data=data):
                    await asyncio.to_thread(self.spoken.write, data)
                    samples += len(data) // SAMPLE_BYTES

        await speech.speak(self.script, take, SpeechRun(Priority.BULK, self.run.timeout_s))
        await asyncio.to_thread(self.spoken.finish_part, self.script.key)
        self._report(samples, self.part.begin + len(self.part.text))

    def _report(self, samples: int, done_characters: int) -> None:
        done_s = samples / SPEECH_RATE
        duration_s = done_s * self.run.record.characters / done_characters if done_characters else 0.0
        self.run.report(JobProgress(done_s, duration_s, done_characters))


@dataclass(frozen=True, slots=True)
class _Book:
    """All parts, spoken."""

    request: SpeechJobRequest
    chapters: tuple[Chapter, ...]
    parts: list[TextPart]
    spoken: JobParts

    def marks(self) -> tuple[ChapterMark, ...]:
        """Return where chapters begin and end, or nothing if there is only one."""
        starts: dict[int, int] = {}
        at = 0
        for part, pause, spoken in self._layout():
            starts.setdefault(part.chapter, at + pause)
            at += pause + spoken.samples
        ends = [*list(starts.values())[1:], at]
        titles = [self.chapters[number].title for number in starts]
        marks = zip(starts.values(), ends, titles, strict=True)
        return tuple(ChapterMark(*mark) for mark in marks) if len(starts) > 1 else ()

    def sound(self) -> Iterator[NDArray[np.float32]]:
        """Yield the whole speech, a few seconds at a time. Reads from the disk."""
        self.spoken.rewind()
        for _, pause, spoken in self._layout():
            yield np.zeros(pause, np.float32)
            for data in self.spoken.blocks(spoken):
                yield np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32_768)

    def _layout(self) -> Iterator[tuple[TextPart, int, JobPart]]:
        """Each part with the samples of silence before it."""
        before: TextPart | None = None
        for part, spoken in zip(self.parts, self.spoken.finished, strict=True):
            pause_ms = 0 if before is None else self.request.pause_ms
            if before is not None and before.chapter != part.chapter:
                pause_ms += _CHAPTER_PAUSE_MS
            yield part, round(pause_ms * SPEECH_RATE / 1000 / self.request.speed), spoken
            before = part


async def _again_if_lost(work: Callable[[], Awaitable[T]]) -> T:
    for _ in range(1, _ATTEMPTS):
        with suppress(SpeechFailed, EncoderUnavailable):
            return await when_there_is_room(work)
    return await when_there_is_room(work)


def _read(run: JobRun) -> tuple[Chapter, ...]:
    with run.store.recording(run.record.id) as file:
        return loaded(file.read())


def _state_length(file: BinaryIO, audio_format: SpeechFormat, samples: int) -> None:
    """Write the length into the header, if the format has a place for it and it fits."""
    file.seek(0)
    header = file.read(_HEADER_BYTES)
    file.seek(0)
    with suppress(ValueError):  # a WAV file over 4 GiB, whose readers go on to its end
        file.write(with_length(audio_format, header, samples))


router = APIRouter(prefix="/v1/audio/speech/jobs", tags=["jobs"])
# JSON may write a character in six bytes, and outside the basic plane in twelve. The rest is for titles and fields.
_MAX_BYTES = 12 * MAX_JOB_CHARS + 2**20


@router.post(
    "",
    status_code=202,
    response_model=JobBody,
    responses={status: {"model": ErrorBody} for status in (400, 404, 413, 422, 429, 501, 503)},
    openapi_extra={
        "parameters": [KEY_PARAMETER],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body.schema_of(SpeechJobBody)}},
        },
    },
)
async def create_speech_job(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Accept a text of up to 2,000,000 characters that is spoken when there is time. Its state, its progress and its
    audio are those of the job, below `/v1/jobs`."""
    services.of(SpeechProcessor).check()
    key = idempotency_key(request)
    async with services.jobs.room_for_text(caller.owner, caller.share, key):
        values = await body.read_json(request, _MAX_BYTES)
        sent = await in_thread(body.validated, SpeechJobBody, values)
        wanted, chapters = speech_job_request(sent, services.catalog), await in_thread(chapters_of, sent)
        services.of(SpeechProcessor).delivery(beginning(wanted, chapters))
        size = await in_thread(text_size, wanted, chapters)
        stored = BytesIO(await in_thread(dumped, chapters))
        options = job_options(key, values, services)
        return accepted(await services.jobs.add(wanted, stored, caller.owner, text=size, options=options))
