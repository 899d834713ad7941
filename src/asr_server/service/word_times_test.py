"""Word times where there is hardly any audio, or none that an aligner could help with."""

import asyncio

import numpy as np
import pytest

from asr_server.scheduling.job import Priority
from asr_server.service import word_times
from asr_server.service.recordings.segmenter import SpeechSpan
from asr_server.service.requests import WordTimes


@pytest.mark.parametrize(("samples", "speech_regions"), [(1, ()), (7, ()), (7, ((0, 7),)), (16, ())])
def test_a_span_of_less_than_a_millisecond_has_words(samples, speech_regions):
    """A text that was heard in next to nothing keeps its words, in order, none of them empty."""
    span = SpeechSpan(0, samples, np.zeros(samples, np.float32), 1.0, speech_regions)
    how, urgency = WordTimes.ESTIMATED, Priority.INTERACTIVE
    found = asyncio.run(word_times.words(None, span, "thank you", "English", how, priority=urgency))
    assert [word.text for word in found] == ["thank", "you"]
    assert all(word.start_ms < word.end_ms for word in found)
