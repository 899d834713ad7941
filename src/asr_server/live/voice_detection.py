"""Voice detection for all live sessions, on a thread of its own: the network of `audio/vad.py` would take more of the
event loop's time than all else that a session needs."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import numpy as np

from asr_server.audio.vad import SpeechProbability
from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.machine.events import Event, Reset
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame


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


def warm_up() -> None:
    """Load the network now, off the event loop. Raises `ModelUnavailable` if it cannot be loaded."""
    SpeechProbability().push(np.zeros(FRAME_SAMPLES, np.float32))
