"""Where speech begins and ends, by hysteresis over the speech probability of frames. Knows no audio and no text."""

from __future__ import annotations

import math
from enum import Enum

from asr_server.core.audio import FRAME_MS

# Speech goes on until the probability falls this far below the threshold: Silero's own choice.
_HYSTERESIS = 0.15
_LOWEST_OFF = 0.01
_MIN_SPEECH_MS = 100  # a shorter sound is a click
_LONGEST_DOUBT_MS = 500  # after this much quiet a click is forgotten, however long a pause may be


class Voice(Enum):
    """What one frame means after those before it."""

    SILENT = "silent"  # no speech, or not yet enough of it to be more than a click
    ONSET = "onset"  # speech is certain now; it began `Endpointer.onset_frames` ago, this frame included
    VOICED = "voiced"  # speech goes on
    PAUSED = "hushed"  # a pause inside the utterance, `Endpointer.quiet_frames` long so far
    ENDPOINT = "endpoint"  # the pause is long enough: the utterance is over


def frames_of(duration_ms: float) -> int:
    """Frames of 32 ms that cover a duration."""
    return math.ceil(duration_ms / FRAME_MS)


class Endpointer:
    """Feed it one probability a frame; after an endpoint, or when the utterance ends for another reason, `reset` it."""

    def __init__(self, threshold: float, min_silence_ms: int) -> None:
        self._on = threshold
        self._off = max(_LOWEST_OFF, threshold - _HYSTERESIS)
        self._min_silence = max(1, frames_of(min_silence_ms))
        self._min_speech = frames_of(_MIN_SPEECH_MS)
        self._doubted = min(self._min_silence, frames_of(_LONGEST_DOUBT_MS))
        self.reset()

    def reset(self) -> None:
        """Silence again; the next speech is a new onset."""
        self._certain = False
        self.onset_frames = 0
        self.quiet_frames = 0

    def resume(self) -> None:
        """In the middle of speech: the next utterance goes on where the last was cut."""
        self._certain = True
        self.onset_frames, self.quiet_frames = 1, 0

    def add(self, probability: float) -> Voice:
        """The next frame."""
        voiced = probability >= self._on
        if not self.onset_frames and not voiced:
            return Voice.SILENT
        self._count(voiced=voiced, quiet=probability < self._off)
        return self._go_on() if self._certain else self._doubt()

    def _count(self, *, voiced: bool, quiet: bool) -> None:
        self.onset_frames += 1
        if voiced:
            self.quiet_frames = 0
        elif quiet or self.quiet_frames:
            self.quiet_frames += 1

    def _doubt(self) -> Voice:
        if self.onset_frames - self.quiet_frames >= self._min_speech and not self.quiet_frames:
            self._certain = True
            return Voice.ONSET
        if self.quiet_frames >= self._doubted:
            self.reset()
        return Voice.SILENT

    def _go_on(self) -> Voice:
        if not self.quiet_frames:
            return Voice.VOICED
        return Voice.PAUSED if self.quiet_frames < self._min_silence else Voice.ENDPOINT
