"""What a processor adds between the transcript and the answer; the whole way runs in E2Etest."""

import asyncio
import io

import pytest

from asr_server.core.settings import Settings
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.recordings.pipeline import RunOptions
from asr_server.recordings.processor import RequestProcessor
from asr_server.recordings.requests import (
    OutputOptions,
    ResponseFormat,
    Result,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
)
from asr_server.schedule.request_clock import RequestClock


def _segment(start, text, language):
    words = tuple(
        Word(w, start + 300 * i, start + 300 * i + 300, TimeSource.ALIGNED) for i, w in enumerate(text.split())
    )
    return Segment(start - 100, words[-1].end_ms, text, language, (), 0.0, 0.0, words=words)


class Transcribed:
    """A pipeline that has the transcript already."""

    def __init__(self, transcript):
        self.transcript = transcript

    async def transcribe(self, source, request, options, emit):
        return self.transcript


@pytest.mark.parametrize(
    "request_",
    [TranscriptionRequest(output=OutputOptions(ResponseFormat.SRT)), SubtitleRequest()],
    ids=lambda request: request.task,
)
async def test_long_recordings_are_rendered_beside_the_event_loop(request_):
    """Live sessions go on while the cues of a long recording are found."""
    segments = tuple(_segment(6000 * i, "one two three four five six, " * 3, "English") for i in range(300))
    transcript = Transcript("", "English", 1_800_000, segments)
    made = asyncio.create_task(_processor(transcript).process(io.BytesIO(), request_))
    turns = 0
    while not made.done():
        await asyncio.sleep(0.001)
        turns += 1
    result, _ = await made
    assert result.content.count(b"-->") > 300
    assert turns > 5


async def test_the_callers_layout_and_the_servers_limits_make_the_cues():
    """Width and number of lines are the request's, durations those of the settings; the file has a name and a source
    of its times."""
    transcript = Transcript("", "English", 9_000, (_segment(0, "one two three four five six", "English"),))
    output = OutputOptions(ResponseFormat.VTT, max_line_chars=10, max_lines=1)
    result, same = await _processor(transcript).process(io.BytesIO(), SubtitleRequest(output=output))
    assert same is transcript
    assert (result.file_name, result.time_source, result.untranslated) == ("subtitles.vtt", "aligned", None)
    shown = [line for line in result.content.decode().splitlines()[1:] if line and "-->" not in line]
    assert max(map(len, shown)) <= 10
    assert len(shown) >= 3


async def test_a_translation_has_what_is_left_of_the_time():
    """The limit of a request is for the transcription and the translation together."""
    limits = []

    class Translator:
        async def answer(self, transcript, request, limit_s):
            limits.append(limit_s)
            return Result(b"", "text/plain")

    processor = _processor(Transcript("", "", 0, ()), Translator())
    await processor.process(io.BytesIO(), TranslationRequest(), RunOptions(timeout_s=5.0))
    assert 4.0 < limits[0] <= 5.0


def _processor(transcript, translator=None):
    return RequestProcessor(Transcribed(transcript), Settings(_env_file=None), RequestClock(), translator)
