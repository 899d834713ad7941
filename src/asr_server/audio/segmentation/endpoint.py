"""The beginning and the end of utterances of a live session, from the speech probability of each frame."""

from __future__ import annotations

from enum import Enum

from asr_server.audio.segmentation.config import MIN_SPEECH_MS
from asr_server.audio.segmentation.hysteresis import Hysteresis
from asr_server.core.audio import ms_to_frames

_LONGEST_DOUBT_MS = 500  # after this much quiet a click is forgotten, however long a pause may be


class VoiceActivity(Enum):
    """The meaning of one frame after those before it."""

    SILENT = "silent"  # no speech, or not yet enough of it to be more than a click
    ONSET = "onset"  # speech is certain now; it began `Endpointer.onset_frames` ago, this frame included
    VOICED = "voiced"  # speech goes on
    PAUSED = "paused"  # a pause inside the utterance, `Endpointer.quiet_frames` long so far
    ENDPOINT = "endpoint"  # the pause is long enough: the utterance is over


class Endpointer:
    """Takes one probability a frame. After an endpoint, or when the utterance ends for another reason, `reset` it."""

    def __init__(self, threshold: float, min_silence_ms: float) -> None:
        self._speech = Hysteresis(threshold)
        self._min_silence = max(1, ms_to_frames(min_silence_ms))
        self._min_speech = ms_to_frames(MIN_SPEECH_MS)
        self._longest_doubt = min(self._min_silence, ms_to_frames(_LONGEST_DOUBT_MS))
        self._certain = False  # what began is speech, not a click

    @property
    def onset_frames(self) -> int:
        """Frames since speech, or what may still prove a click, began; 0 in silence."""
        return self._speech.frames

    @property
    def quiet_frames(self) -> int:
        """Frames of the pause that is running."""
        return self._speech.quiet_frames

    def reset(self) -> None:
        """Silence again; the next speech is a new onset."""
        self._certain = False
        self._speech.reset()

    def resume(self) -> None:
        """Begin in the middle of speech: the next utterance continues where the last was cut."""
        self._certain = True
        self._speech.reset(frames=1)

    def add(self, probability: float) -> VoiceActivity:
        """Add the next frame."""
        self._speech.add(probability)
        if not self._certain:
            return self._doubt()
        if not self.quiet_frames:
            return VoiceActivity.VOICED
        return VoiceActivity.PAUSED if self.quiet_frames < self._min_silence else VoiceActivity.ENDPOINT

    def _doubt(self) -> VoiceActivity:
        if self._speech.frames >= self._min_speech and not self.quiet_frames:
            self._certain = True
            return VoiceActivity.ONSET
        if self.quiet_frames >= self._longest_doubt:
            self.reset()
        return VoiceActivity.SILENT
