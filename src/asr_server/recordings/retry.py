"""The second try for an answer that went wrong: the same for the spans of recordings and for live finals.

An answer that repeats itself, or that used up its token budget, is asked for again in an easier form: greedily if it
was sampled, then in two halves. What still fails is returned as it is: its `finish` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from asr_server.audio.segmentation import quietest_middle
from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.protocol import Finish, Utterance

if TYPE_CHECKING:
    from asr_server.engine.client import Transcription

# In half of a shorter utterance, a word lost at the cut is more likely than a mended loop.
_MIN_SPLIT_SAMPLES = 2 * SAMPLE_RATE

# Transcribes an utterance: `EngineClient.transcribe` with its other arguments bound.
Ask = Callable[[Utterance], Awaitable["Transcription"]]


async def retry(utterance: Utterance, first: Transcription, ask: Ask) -> list[Transcription]:
    """The answers for `utterance`, whose first answer was `first`: one, or two for its halves, in order.

    Raises what `ask` raises. Cancelling cancels what was asked. Of the utterance only audio, languages and context are
    used again: a draft or a forced beginning belong to the answer that went wrong, and nobody knows in which half they
    end.
    """
    samples = len(utterance.audio)
    answer = first
    if answer.hypothesis.finish is not Finish.END and utterance.temperature > 0:
        answer = await ask(_greedy(utterance, 0, samples))
    if answer.hypothesis.finish is Finish.END or samples < _MIN_SPLIT_SAMPLES:
        return [answer]
    middle = quietest_middle(utterance.audio)
    return await _ask_all(utterance, [(0, middle), (middle, samples)], ask)


async def _ask_all(utterance: Utterance, parts: list[tuple[int, int]], ask: Ask) -> list[Transcription]:
    tasks = [asyncio.ensure_future(ask(_greedy(utterance, start, end))) for start, end in parts]
    try:
        found = await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # where one failed, nobody waits for the other
            task.cancel()
    return [replace(one, start=start, end=end) for (start, end), one in zip(parts, found, strict=True)]


def _greedy(utterance: Utterance, start: int, end: int) -> Utterance:
    return Utterance(utterance.audio[start:end], utterance.language, utterance.context, languages=utterance.languages)
