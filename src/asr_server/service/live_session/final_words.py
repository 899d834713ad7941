"""The word times of live finals: asked for when a final has been sent, told behind it. Nobody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server.core.errors import AsrError
from asr_server.core.transcript import Word
from asr_server.engine.client import EngineClient
from asr_server.scheduling.job import Priority
from asr_server.service import word_times
from asr_server.service.recordings.segmenter import SpeechSpan
from asr_server.service.requests import WordTimes

if TYPE_CHECKING:
    from asr_server.live.events import Final, Samples, Transcribe
    from asr_server.scheduling.thread import EngineThread


@dataclass(frozen=True, slots=True)
class WordTimestamps:
    """The words of an utterance whose final has been told, in milliseconds of the session."""

    utterance: int
    words: tuple[Word, ...]


class FinalWordTimes:
    """Of one session. Holds the audio that the engine was last asked about: of any utterance before, the final has been
    told, or it was thrown away and has none."""

    def __init__(self, engine: EngineThread, how: WordTimes, tell: Callable[[WordTimestamps], None]) -> None:
        self._engine = engine
        self._how = how
        self._tell = tell
        self._audio: dict[int, Samples] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, question: Transcribe) -> None:
        """The engine is asked for the text of this audio, which begins where its utterance does."""
        if self._how is not WordTimes.NONE:
            self._audio = {question.utterance: question.audio}

    def told(self, final: Final) -> None:
        """A final has been sent: find its words."""
        audio = self._audio.pop(final.utterance, None)
        if audio is not None and final.text.strip():
            task = asyncio.create_task(self._find(final, audio))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Ask for nothing more."""
        self._audio.clear()
        for task in self._tasks:
            task.cancel()

    async def _find(self, final: Final, audio: Samples) -> None:
        start = final.start_samples
        span = SpeechSpan(start, start + len(audio), audio, 1.0)
        try:
            found = await word_times.words(
                EngineClient(self._engine), span, final.text, final.language, self._how, priority=Priority.INTERACTIVE
            )
        except AsrError:  # the server is going: the text is told, its times are not
            return
        self._tell(WordTimestamps(final.utterance, found))
