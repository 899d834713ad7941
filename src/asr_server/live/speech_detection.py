"""Voice detection and estimates of the end of a turn, for all live sessions, each on a thread of its own.

The network of `audio/vad.py` would take more of the event loop's time than all else that a session needs. A session
waits for its own estimate of the end of a turn, and nobody else does: what may wait here is bounded, and without an
estimate the pause rule decides.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from loguru import logger

from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES, SAMPLE_RATE
from asr_server.engine.feature import EndOfTurnModel
from asr_server.live.machine.events import Event, Reset, Samples
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame
from asr_server.live.session_stats import EstimateResult, LiveObserver


class VoiceDetector:
    """The detector of one session. `thread`: of all sessions; it does one thing after the other, in order.

    A session waits for the frames of an event before it goes on with the next one. So each has the same share of the
    thread, and no more waits for it than a piece of audio of each session.
    """

    def __init__(self, thread: Executor) -> None:
        self._thread = thread
        self._scorer = SpeechProbability()

    async def frames(self, machine: LiveMachine, event: Event) -> list[Frame]:
        """The frames of the session's machine that this event completes, with their speech probabilities."""
        if isinstance(event, Reset):
            self._scorer.reset()
        frames = machine.frames(event)
        if not frames:
            return []
        audio = np.concatenate(frames)
        if missing := -len(audio) % FRAME_SAMPLES:  # of the last frame before a flush
            audio = np.pad(audio, (0, missing))
        scores = await asyncio.get_running_loop().run_in_executor(self._thread, self._scorer.push, audio)
        return [Frame(*each) for each in zip(frames, scores.tolist(), strict=True)]


def load_voice_detector() -> None:
    """Load the network now, off the event loop. Raises `ModelUnavailable` if it cannot be loaded."""
    SpeechProbability().push(np.zeros(FRAME_SAMPLES, np.float32))


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
