"""The audio that waits for the words of a final: of one utterance at a time, however many were discarded."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np

from asr_server.live.inference import FinalWordTimes
from asr_server.live.machine.events import Ending, Final, FinalPart, ResultKind, Transcribe
from asr_server.recordings.requests import WordTimes


def _request(number, start=0):
    return Transcribe(
        ticket=number,
        kind=ResultKind.PARTIAL,
        utterance=number,
        start_samples=start,
        audio=np.zeros(16_000, np.float32),
        language=None,
        context="",
        prefix=(),
        draft=(),
    )


def test_the_audio_of_utterances_that_were_discarded_is_not_held():
    """A session of hours that clears its input again and again holds the audio of one utterance."""
    words = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, lambda timed: None)
    held = []
    for number in range(1, 6):
        request = _request(number)
        words.on_request(request)
        held.append(weakref.ref(request.audio))
    del request
    gc.collect()
    assert [audio() is not None for audio in held] == [False, False, False, False, True]


async def test_each_part_of_an_utterance_is_aligned_with_its_own_audio():
    """The words of both parts, in the times of the session; what is estimated needs no engine."""
    sent = asyncio.Queue()
    words = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, sent.put_nowait)
    for start in (0, 80_000):
        words.on_request(_request(1, start))
    parts = (FinalPart(0, 16_000, "one two"), FinalPart(80_000, 96_000, "three"))
    words.on_final(Final(1, "one two three", "English", 0, 96_000, Ending.FLUSH, parts))
    found = (await sent.get()).words
    assert [word.text for word in found] == ["one", "two", "three"]
    assert found[1].end_ms <= 1_000
    assert found[2].start_ms >= 5_000


async def test_whoever_ends_a_session_can_wait_for_the_words_under_way():
    """For a bounded time: what aligns them may hang."""
    sent = asyncio.Queue()
    words = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, sent.put_nowait)
    words.on_request(_request(1))
    words.on_final(Final(1, "one", "English", 0, 16_000, Ending.FLUSH, (FinalPart(0, 16_000, "one"),)))
    assert sent.empty()
    await words.wait(30)
    assert sent.get_nowait().utterance == 1
    words._tasks.add(asyncio.create_task(asyncio.Event().wait()))
    await asyncio.wait_for(words.wait(0.01), 30)
    words.close()
