"""Loads the model and runs it once, so that the first caller does not pay for it. Not a test of the model."""

from __future__ import annotations

import asyncio

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.protocol import Utterance
from asr_server.scheduling.job import Job, Priority
from asr_server.scheduling.thread import EngineThread


async def warm_up(engine: EngineThread) -> None:
    """Transcribe one second of silence. Raises what loading or transcribing raised."""
    import numpy as np

    silence = Utterance(np.zeros(SAMPLE_RATE, dtype=np.float32))
    await asyncio.wrap_future(engine.submit(Job(silence, priority=Priority.LIVE)))
