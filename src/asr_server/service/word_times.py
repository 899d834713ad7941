"""When the words of an answer were said: asked of the aligner, or estimated. Not alignment itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from asr_server.core.audio import samples_to_ms
from asr_server.core.errors import AsrError, DeadlineExceeded, EngineError, InvalidInput
from asr_server.core.transcript import Word
from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import AlignItem
from asr_server.scheduling.job import Priority
from asr_server.service.requests import WordTimes
from asr_server.subtitle import alignment, timing

if TYPE_CHECKING:
    from asr_server.scheduling.thread import EngineThread
    from asr_server.service.recordings.segmenter import SpeechSpan


async def words(
    engine: EngineThread, span: SpeechSpan, text: str, language: str, how: WordTimes, *, priority: Priority
) -> tuple[Word, ...]:
    """The words of `text`, in milliseconds of the recording; none for no text.

    Where the aligner cannot help (its language is another, it is not there, it failed) the times are estimates, and
    every word says which it is. Raises `ShuttingDown` only.
    """
    if how is WordTimes.NONE or not text.strip():
        return ()
    if how is WordTimes.ALIGNED:
        found = await _aligned(engine, span, text, language, priority)
        if found is not None:
            return found
    speech_regions = span.speech_regions or ((span.start, span.end),)
    # Less than a millisecond is one still: a region of none is no place for words.
    return timing.estimate(
        text,
        language,
        [(samples_to_ms(start), max(samples_to_ms(end), samples_to_ms(start) + 1)) for start, end in speech_regions],
    )


async def _aligned(
    engine: EngineThread, span: SpeechSpan, text: str, language: str, priority: Priority
) -> tuple[Word, ...] | None:
    try:
        found = await EngineClient(engine).align(AlignItem(span.audio, text, language), priority=priority)
    except (EngineError, InvalidInput, DeadlineExceeded) as error:
        _note(error)
        return None
    if not found.pieces:
        return None
    begin_ms = samples_to_ms(span.start)
    pieces = [(piece.text, begin_ms + piece.start_ms, begin_ms + piece.end_ms) for piece in found.pieces]
    return alignment.transfer_timestamps(text, pieces, (begin_ms, samples_to_ms(span.end)), language)


def _note(error: AsrError) -> None:
    logger.warning("words are not aligned", code=error.code, reason=error.message)
