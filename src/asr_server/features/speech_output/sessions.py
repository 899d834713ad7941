"""All sessions that speak texts while they arrive: opened, closed, drained at shutdown."""

from __future__ import annotations

import asyncio

from loguru import logger

from asr_server.core.audio import SPEECH_RATE
from asr_server.core.errors import ShuttingDown
from asr_server.features.speech_output.session import SessionLimits, SpeechSession
from asr_server.features.speech_output.synthesis import SpeechObserver, SpeechProcessor
from asr_server.net.credentials import fingerprint

_DRAIN_TIMEOUT_S = 20.0


class SpeechSessions:
    """The open sessions of the server. For one event loop."""

    def __init__(
        self, processor: SpeechProcessor, limits: SessionLimits, observer: SpeechObserver | None = None
    ) -> None:
        self._processor, self._limits = processor, limits
        self._observer = observer or SpeechObserver()
        self._open: set[SpeechSession] = set()
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def texts(self) -> int:
        """The number of sessions that have something to speak."""
        return sum(session.sentences_left > 0 for session in self._open)

    @property
    def sentences_left(self) -> int:
        """The number of sentences of all sessions that are known and not spoken yet."""
        return sum(session.sentences_left for session in self._open)

    def open(self, share: str = "") -> SpeechSession:
        """Open a session. `share`: its key or address, for fairness. Raises `SpeechUnavailable` and `ShuttingDown`."""
        self._processor.check()
        if self._draining:
            raise ShuttingDown("The server is shutting down.")
        session = SpeechSession(self._processor, self._limits, self._observer, share)
        self._open.add(session)
        return session

    async def close(self, session: SpeechSession, owner: str) -> None:
        """Close a session whose connection has ended."""
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
