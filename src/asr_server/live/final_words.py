"""The word times of live finals: found after a final was sent, and sent after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asr_server.core.errors import AsrError
from asr_server.core.transcript import Word
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.segmenter import SpeechSpan
from asr_server.recordings.span import time_words
from asr_server.schedule.job import Priority

if TYPE_CHECKING:
    from asr_server.engine.client import EngineClient
    from asr_server.live.machine.events import Final, FinalPart, Samples, Transcribe


@dataclass(frozen=True, slots=True)
class WordTimestamps:
    """The words of an utterance whose final was sent before, in milliseconds of the session."""

    utterance: int
    words: tuple[Word, ...]


class FinalWordTimes:
    """Times the words of one session; `send` gets those of each final with text. `engine_of`: finds the aligner.

    Holds the audio of one utterance only: those before it have their finals, or were discarded and have none.
    """

    def __init__(
        self, engine_of: Callable[[str], EngineClient], how: WordTimes, send: Callable[[WordTimestamps], None]
    ) -> None:
        self._engine_of = engine_of
        self._model = ""
        self._how = how
        self._send = send
        self._utterance = 0
        self._audio: dict[int, Samples] = {}  # of the parts of that utterance, by where they begin
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, request: Transcribe) -> None:
        """The engine transcribes this audio, which begins where its utterance does."""
        if self._how is not WordTimes.NONE:
            if request.utterance != self._utterance:
                self._utterance, self._model, self._audio = request.utterance, request.model, {}
            self._audio[request.start_samples] = request.audio

    def on_final(self, final: Final) -> None:
        """A final has been sent: find its words."""
        if final.utterance != self._utterance:
            return
        audio, self._audio = self._audio, {}
        spoken = [(part, audio[part.start_samples]) for part in final.parts if part.text.strip()]
        if spoken:
            task = asyncio.create_task(self._find(final, spoken))
            self._tasks.add(task)  # asyncio itself holds a task only weakly
            task.add_done_callback(self._tasks.discard)

    async def wait(self, timeout_s: float) -> None:
        """Wait until the words that are being timed have been sent."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)

    def close(self) -> None:
        """Look for no more words."""
        self._audio.clear()
        for task in self._tasks:
            task.cancel()

    async def _find(self, final: Final, spoken: list[tuple[FinalPart, Samples]]) -> None:
        words: list[Word] = []
        engine = self._engine_of(self._model)
        try:
            for part, audio in spoken:
                span = SpeechSpan(part.start_samples, part.start_samples + len(audio), audio, 1.0)
                words += await time_words(
                    engine, span, part.text, final.language, self._how, priority=Priority.INTERACTIVE
                )
        except AsrError:  # the server shuts down; the text was sent
            return
        self._send(WordTimestamps(final.utterance, tuple(words)))
