"""The audio that waits for the words of a final: of one utterance at a time, however many were discarded."""

import gc
import weakref

import numpy as np

from asr_server.live.events import ResultKind, Transcribe
from asr_server.service.live_session.final_words import FinalWordTimes
from asr_server.service.requests import WordTimes


def _request(number):
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


def test_the_audio_of_utterances_that_were_discarded_is_not_held():
    """A session of hours that clears its input again and again holds the audio of one utterance."""
    words = FinalWordTimes(None, WordTimes.ESTIMATED, lambda timed: None)
    held = []
    for number in range(1, 6):
        request = _request(number)
        words.on_request(request)
        held.append(weakref.ref(request.audio))
    del request
    gc.collect()
    assert [audio() is not None for audio in held] == [False, False, False, False, True]
