"""A double of what tells speakers apart: a person is a tone. It listens to the samples, so that a file can be heard."""

from itertools import groupby

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.speakers.turns import Diarization, Turn

_FRAME = 512
_FRAME_MS = 1000 * _FRAME / SAMPLE_RATE
_LOUD = 0.02


def tone(hertz, seconds, *, loudness=0.3):
    """A person who speaks without a pause: int16 at 16 kHz."""
    return (np.sin(np.arange(int(seconds * SAMPLE_RATE)) * 2 * np.pi * hertz / SAMPLE_RATE) * loudness * 32767).astype(
        np.int16
    )


class ToneSpeakers:
    """Voice prints are spectra, (256,) float32 of length 1. `calls`: how many recordings were looked at."""

    voice_model = "tones"

    def __init__(self):
        self.calls = 0

    async def diarize(self, samples, count=None):
        """A turn for each run of a tone, whatever `count` says."""
        self.calls += 1
        spectra = _spectra(samples)
        pitches = [int(each.argmax()) if each.max() else -1 for each in spectra]
        people = list(dict.fromkeys(pitch for pitch in pitches if pitch >= 0))
        turns, at = [], 0
        for pitch, frames in groupby(pitches):
            end = at + len(list(frames))
            if pitch >= 0:
                turns.append(Turn(people.index(pitch), int(at * _FRAME_MS), int(end * _FRAME_MS)))
            at = end
        heard = np.array(pitches)
        return Diarization(tuple(turns), tuple(_voice(spectra[heard == pitch]) for pitch in people))


def _spectra(samples):
    """(frames, 256), zeros for frames of silence."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    loud = np.abs(frames).max(axis=1, keepdims=True) > _LOUD
    return np.abs(np.fft.rfft(frames * np.hanning(_FRAME)))[:, :256] * loud


def _voice(spectra):
    mean = spectra.mean(axis=0)
    return (mean / np.linalg.norm(mean)).astype(np.float32)
