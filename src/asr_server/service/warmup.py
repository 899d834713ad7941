"""Loads the model and runs it once, so that the first caller does not wait for it."""

from __future__ import annotations

from asr_server.engine.client import EngineClient
from asr_server.engine.protocol import Utterance
from asr_server.scheduling.job import Priority


async def warm_up(engine: EngineClient) -> None:
    """Transcribe one second of silence. Raises what loading or transcribing raised."""
    import numpy as np

    await engine.transcribe(Utterance(np.zeros(16_000, dtype=np.float32)), priority=Priority.LIVE)
