"""The word times of live finals: found after a final was sent, and sent after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server.core.errors import AsrError
from asr_server.core.transcript import Word
from asr_server.scheduling.job import Priority
from asr_server.service import word_times
from asr_server.service.recordings.segmenter import SpeechSpan
from asr_server.service.requests import WordTimes

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient
    from asr_server.live.events import Final, Samples, Transcribe


@dataclass(frozen=True, slots=True)
class WordTimestamps:
    """The words of an utterance whose final was sent before, in milliseconds of the session."""

    utterance: int
    words: tuple[Word, ...]


class FinalWordTimes:
    """Of one session; `send` gets the words of each final that has text.

    Holds the audio of the last request only: an utterance before it has its final, or was discarded and has none.
    """

    def __init__(self, engine: EngineClient, how: WordTimes, send: Callable[[WordTimestamps], None]) -> None:
        self._engine = engine
        self._how = how
        self._send = send
        self._audio: dict[int, Samples] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, request: Transcribe) -> None:
        """The engine transcribes this audio, which begins where its utterance does."""
        if self._how is not WordTimes.NONE:
            self._audio = {request.utterance: request.audio}

    def on_final(self, final: Final) -> None:
        """A final has been sent: find its words."""
        audio = self._audio.pop(final.utterance, None)
        if audio is not None and final.text.strip():
            task = asyncio.create_task(self._find(final, audio))
            self._tasks.add(task)  # asyncio itself holds a task only weakly
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Look for no more words."""
        self._audio.clear()
        for task in self._tasks:
            task.cancel()

    async def _find(self, final: Final, audio: Samples) -> None:
        start = final.start_samples
        span = SpeechSpan(start, start + len(audio), audio, 1.0)
        try:
            words = await word_times.words(
                self._engine, span, final.text, final.language, self._how, priority=Priority.INTERACTIVE
            )
        except AsrError:  # the server shuts down; the text was sent
            return
        self._send(WordTimestamps(final.utterance, words))
