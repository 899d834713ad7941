"""All sessions that speak texts while they arrive: opened, closed, drained at shutdown."""

from __future__ import annotations

import asyncio

from loguru import logger

from asr_server.audio.encoding.client import AudioEncoder
from asr_server.core.api_keys import fingerprint
from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import ShuttingDown
from asr_server.service.speech.session import SessionLimits, SpeechSession
from asr_server.service.speech.synthesis import SpeechProcessor

_DRAIN_TIMEOUT_S = 20.0


class SpeechSessions:
    """Made once by the server. For one event loop."""

    def __init__(self, processor: SpeechProcessor, encoder: AudioEncoder, limits: SessionLimits) -> None:
        self._processor, self._encoder, self._limits = processor, encoder, limits
        self._open: set[SpeechSession] = set()
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> SpeechSession:
        """A new session. Raises `SpeechUnavailable` and `ShuttingDown`."""
        assert self._processor.engines
        if self._draining:
            raise ShuttingDown("The server is shutting down.")
        session = SpeechSession(self._processor, self._encoder, self._limits)
        self._open.add(session)
        return session

    async def close(self, session: SpeechSession, owner: str) -> None:
        """The connection has ended."""
        self._open.discard(session)
        await session.close()
        session.closed.set()
        key = {"key": fingerprint(owner)} if owner else {}
        logger.info(
            "speech session",
            session=session.id,
            characters=session.characters,
            sentences=session.sentences_done,
            audio_s=round(session.sent_samples / SPEECH_RATE, 3),
            cancels=session.cancels,
            **key,
        )

    async def drain(self) -> None:
        """Open no new sessions; let every open one speak its present sentence, and end it with `ShuttingDown`."""
        self._draining = True
        sessions = list(self._open)
        for session in sessions:
            session.finish_sentence()
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await asyncio.gather(*(session.closed.wait() for session in sessions))
        except TimeoutError:
            logger.warning("speech sessions not finished in time", sessions=len(self._open))
