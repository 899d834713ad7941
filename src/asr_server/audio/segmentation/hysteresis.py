"""Speech and pause by hysteresis: speech begins at one probability and ends below a lower one."""

from __future__ import annotations

from asr_server.audio.segmentation.config import off_threshold


class Hysteresis:
    """Counts the frames of speech and of the pause at its end. Whether a pause ends the speech is the caller's rule.

    A pause begins with a frame below `off_threshold(threshold)` and ends with a frame at or above `threshold`.
    """

    def __init__(self, threshold: float) -> None:
        self._on, self._off = threshold, off_threshold(threshold)
        self.frames = 0  # since speech began, the pause included; 0: no speech
        self.quiet_frames = 0  # of these, the pause at the end

    @property
    def voiced_frames(self) -> int:
        """Return the frames from the first frame of speech to the pause, or to now if there is none."""
        return self.frames - self.quiet_frames

    def add(self, probability: float) -> None:
        """Add the next frame."""
        voiced = probability >= self._on
        if not self.frames and not voiced:
            return
        self.frames += 1
        if voiced:
            self.quiet_frames = 0
        elif self.quiet_frames or probability < self._off:
            self.quiet_frames += 1

    def reset(self, frames: int = 0) -> None:
        """Begin with silence, or with speech that began `frames` frames ago."""
        self.frames, self.quiet_frames = frames, 0
