"""The audio that waits for the words of a final: of one utterance at a time, however many were thrown away."""

import gc
import weakref

import numpy as np

from asr_server.live.events import ResultKind, Transcribe
from asr_server.service.live_session.final_words import FinalWordTimes
from asr_server.service.requests import WordTimes


def _asked(number):
    return Transcribe(
        ticket=number,
        kind=ResultKind.PARTIAL,
        utterance=number,
        start_samples=0,
        audio=np.zeros(16_000, np.float32),
        language=None,
        context="",
        prefix=(),
        draft=(),
    )


def test_the_audio_of_utterances_that_were_thrown_away_is_not_held():
    """A session of hours that clears its input again and again holds the audio of one utterance."""
    words = FinalWordTimes(None, WordTimes.ESTIMATED, lambda spoken: None)
    held = []
    for number in range(1, 6):
        question = _asked(number)
        words.asked(question)
        held.append(weakref.ref(question.audio))
    del question
    gc.collect()
    assert [audio() is not None for audio in held] == [False, False, False, False, True]
