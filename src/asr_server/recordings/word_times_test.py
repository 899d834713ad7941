"""Word times by the aligner, and where there is hardly any audio or none that it could help with."""

import asyncio

import numpy as np
import pytest

from asr_server.core.errors import DeadlineExceeded, TranscriptionFailed, UnsupportedLanguage
from asr_server.engine.protocol import AlignedPiece, Alignment, EngineTraits
from asr_server.recordings import word_times
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.segmenter import SpeechSpan
from asr_server.schedule.job import Priority


@pytest.mark.parametrize(("samples", "speech_regions"), [(1, ()), (7, ()), (7, ((0, 7),)), (16, ())])
def test_a_span_of_less_than_a_millisecond_has_words(samples, speech_regions):
    """A text that was heard in next to nothing keeps its words, in order, none of them empty."""
    span = SpeechSpan(0, samples, np.zeros(samples, np.float32), 1.0, speech_regions)
    how, urgency = WordTimes.ESTIMATED, Priority.INTERACTIVE
    found = asyncio.run(word_times.words(None, span, "thank you", "English", how, priority=urgency))
    assert [word.text for word in found] == ["thank", "you"]
    assert all(word.start_ms < word.end_ms for word in found)


class _Engine:
    """An aligner that says what it was asked."""

    traits = EngineTraits(aligns=True)

    async def align(self, item, *, priority):
        self.item = item
        return Alignment((AlignedPiece("thanks", 100, 400),))


def test_the_aligner_gets_a_span_and_its_times_come_back_as_those_of_the_recording():
    """Regions of speech count from the start of the span, as its audio does."""
    engine = _Engine()
    span = SpeechSpan(32_000, 48_000, np.zeros(16_000, np.float32), 1.0, ((33_600, 40_000),))
    found = asyncio.run(
        word_times.words(engine, span, "Thanks.", "English", WordTimes.ALIGNED, priority=Priority.INTERACTIVE)
    )
    assert engine.item.speech_regions == ((1_600, 8_000),)
    assert [(word.text, word.start_ms, word.end_ms) for word in found] == [("Thanks.", 2_100, 2_400)]


@pytest.mark.parametrize("error", [TranscriptionFailed("no"), UnsupportedLanguage("no"), DeadlineExceeded("late")])
def test_words_without_an_aligner_that_helps_are_estimated(error):
    """Whether it failed, does not know the language, or was too late: the text has its words all the same."""

    class Failing(_Engine):
        async def align(self, item, *, priority):
            raise error

    span = SpeechSpan(32_000, 48_000, np.zeros(16_000, np.float32), 1.0, ((33_600, 40_000),))
    found = asyncio.run(
        word_times.words(Failing(), span, "Thanks.", "English", WordTimes.ALIGNED, priority=Priority.INTERACTIVE)
    )
    assert [(word.text, word.start_ms, word.end_ms, word.source.value) for word in found] == [
        ("Thanks.", 2_100, 2_500, "estimated")
    ]
