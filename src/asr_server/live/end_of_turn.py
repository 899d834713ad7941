"""Estimates how likely a speaker has finished, for all live sessions, on a thread of its own.

A session waits for its own estimate, and nobody else does: what may wait here is bounded, and without an estimate the
pause rule decides.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from loguru import logger

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.feature import EndOfTurnModel
from asr_server.live.machine.events import Samples
from asr_server.live.session_stats import EstimateResult, LiveObserver

# Estimates that wait or run. One takes some 45 ms of a core, so the last of them comes after about 0.7 s, hardly later
# than the pause rule would decide.
_MOST_WAITING = 16


class EndOfTurnEstimator:
    """Runs the model.

    Voice detection has another thread: its calls take less than a millisecond, and hundreds of sessions wait for them
    at every piece of audio.

    Everything but the model's own call is on the event loop.
    """

    def __init__(self, model: EndOfTurnModel, observer: LiveObserver) -> None:
        self._model = model
        self._observer = observer
        self._thread = ThreadPoolExecutor(1, "end-of-turn")
        self._waiting = 0
        self._has_failed = False
        self._is_loaded = False

    def warm_up(self) -> None:
        """Load the model now, on its thread, so that the first pause need not wait for it. Does not wait."""
        if not self._is_loaded:
            self._is_loaded = True
            self._thread.submit(self._load)

    async def probability(self, speech: Samples) -> float | None:
        """Return the model's estimate; None where it cannot tell, or where too many ask."""
        if self._waiting >= _MOST_WAITING:
            self._observer.estimated(EstimateResult.SKIPPED)
            return None
        self._waiting += 1
        # Not cancelled with the session that asked: it would be counted as done while it still has the thread.
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._model.probability, speech)
        running.add_done_callback(self._on_done)
        try:
            return await asyncio.shield(running)
        except Exception as error:  # the pause rule decides where there is no estimate
            if not self._has_failed:
                self._has_failed = True
                logger.opt(exception=error).warning("the end of turns cannot be estimated; the pause rule decides")
            return None

    def _on_done(self, running: asyncio.Future[float]) -> None:
        self._waiting -= 1
        failed = running.cancelled() or running.exception() is not None
        self._observer.estimated(EstimateResult.FAILED if failed else EstimateResult.ESTIMATED)

    def _load(self) -> None:
        try:
            self._model.probability(np.zeros(SAMPLE_RATE, np.float32))
        except Exception as error:  # the first estimate says what is wrong
            logger.debug("the model of the end of turns was not loaded", error=type(error).__name__)
