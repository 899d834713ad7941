"""What a producer adds between the transcript and the body; the whole way runs in E2Etest."""

import asyncio
import io

import pytest

from asr_server.core.settings import Settings
from asr_server.core.transcript import Segment, TimeSource, Transcript, Word
from asr_server.service import processor
from asr_server.service.output.render import Shape
from asr_server.service.requests import ResponseFormat, TranscribeOptions
from asr_server.service.translations import TranslateOptions, Translations
from asr_server.subtitle.cues import Cue
from asr_server.text import target_languages


def _segment(start, text, language):
    words = tuple(
        Word(w, start + 300 * i, start + 300 * i + 300, TimeSource.ALIGNED) for i, w in enumerate(text.split())
    )
    return Segment(start - 100, words[-1].end_ms, text, language, (), 0.0, 0.0, words=words)


def test_a_cue_of_two_languages_has_none():
    """Such a cue is not taken for one that is in the target language already: half of it would stay as it is."""
    segments = [_segment(100, "Ja.", "German"), _segment(450, "turn on the light", "English")]
    cues = [Cue(100, 2000, "Ja. turn on the light")]
    assert processor._languages(cues, segments) == [""]
    assert processor._languages([Cue(100, 440, "Ja."), Cue(450, 2400, "turn on the light")], segments) == [
        "German",
        "English",
    ]


def test_moved_words_keep_their_language():
    """Words of two spans that overlap are shown one after the other: a cue may begin where no word did."""
    segments = [_segment(100, "one two three", "English"), _segment(200, "vier", "German")]
    cues = [Cue(100, 701, "one two three"), Cue(702, 1100, "vier")]
    assert processor._languages(cues, segments)[1] == "German"


class Scripted:
    """A transcriber that has the transcript already."""

    def __init__(self, transcript):
        self.transcript = transcript

    async def stream(self, source, options, *, pieces):
        yield self.transcript


OPTIONS, SRT = TranscribeOptions(), Shape(ResponseFormat.SRT)
TO_ENGLISH = TranslateOptions(target_languages.find("en"), keep_on_failure=True)


@pytest.mark.parametrize(
    "request_",
    [
        processor.TranscriptionRequest(OPTIONS, SRT),
        processor.SubtitleRequest(OPTIONS, SRT),
        processor.TranslationRequest(OPTIONS, TO_ENGLISH, SRT),
    ],
    ids=lambda request: request.task,
)
async def test_long_recordings_are_rendered_beside_the_event_loop(request_):
    """Live sessions go on while the cues of a long recording are found."""
    segments = tuple(_segment(6000 * i, "one two three four five six, " * 3, "English") for i in range(300))
    transcript = Transcript("", "English", 1_800_000, segments)
    producer = processor.RequestProcessor(Scripted(transcript), Translations(Settings(_env_file=None)), 60.0)
    made = asyncio.create_task(producer.produce(io.BytesIO(), request_))
    turns = 0
    while not made.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert (await made).body.content.count(b"-->") > 300
    assert turns > 5
