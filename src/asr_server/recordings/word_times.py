"""The times of words: by the aligner, or estimated where it cannot help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.audio import samples_to_ms
from asr_server.core.errors import DeadlineExceeded, EngineError, InvalidInput
from asr_server.core.transcript import Word
from asr_server.engine.protocol import AlignItem
from asr_server.recordings.requests import WordTimes
from asr_server.subtitle import alignment

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient
    from asr_server.recordings.segmenter import SpeechSpan
    from asr_server.schedule.job import Priority


async def words(
    engine: EngineClient, span: SpeechSpan, text: str, language: str, how: WordTimes, *, priority: Priority
) -> tuple[Word, ...]:
    """Return the words of `text`, with times in milliseconds of the recording, or none if there is no text.

    Where no aligner can help (there is none, or it does not know the language, is not loaded, or failed) the times are
    estimates. Each word says which it has. Raises `ShuttingDown` only.
    """
    if how is WordTimes.NONE or not text.strip():
        return ()
    if how is WordTimes.ALIGNED and engine.traits.aligns:
        found = await _aligned(engine, span, text, language, priority)
        if found is not None:
            return found
    regions_ms = [(samples_to_ms(a), samples_to_ms(b)) for a, b in span.speech_regions or ((span.start, span.end),)]
    # A region that rounds to no length at all could not hold a word.
    return alignment.estimate(text, language, [(start, max(end, start + 1)) for start, end in regions_ms])


async def _aligned(
    engine: EngineClient, span: SpeechSpan, text: str, language: str, priority: Priority
) -> tuple[Word, ...] | None:
    regions = tuple((start - span.start, end - span.start) for start, end in span.speech_regions)
    try:
        found = await engine.align(AlignItem(span.audio, text, language, regions), priority=priority)
    except (EngineError, InvalidInput, DeadlineExceeded) as error:
        logger.warning("words are not aligned", code=error.code, reason=error.message)
        return None
    if not found.pieces:
        return None
    begin_ms = samples_to_ms(span.start)
    pieces = [(piece.text, begin_ms + piece.start_ms, begin_ms + piece.end_ms) for piece in found.pieces]
    return alignment.transfer_timestamps(text, pieces, (begin_ms, samples_to_ms(span.end)), language)
