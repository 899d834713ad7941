"""The speakers of one recording, whose samples arrive in blocks.

Every 2.5 s, the network finds who of up to three people speaks in a window of 10 s. Only the middle of the window is
used, which has sound on both sides. Speech of only one person is cut into pieces of about 2 s, and each becomes a voice
vector. At the end, the vectors of the whole recording are clustered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from asr_server.features.speakers.diarization import clustering, spans
from asr_server.features.speakers.diarization.models import WINDOW_SAMPLES, Samples
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount
from asr_server.features.speakers.diarization.windows import Overlap, Piece, SpeakerModels, analyse

_STEP_SAMPLES = WINDOW_SAMPLES // 4
_EDGE_SAMPLES = (WINDOW_SAMPLES - _STEP_SAMPLES) // 2


class RecordingDiarizer:
    """Finds the speakers of one recording. It keeps 10 s of sound, and a vector for every 2 s of speech. For one
    thread.

    `pieces`: pieces of the recording that are already known.
    """

    def __init__(self, models: SpeakerModels, pieces: Iterable[Piece] = ()) -> None:
        self._models = models
        self._sound = np.zeros(0, np.float32)
        self._begin = 0  # the sample with which `_sound` begins
        self._done = 0  # the sample up to which there are pieces
        self._windows = 0
        self._pieces = list(pieces)
        self._overlaps: list[Overlap] = []

    def push(self, samples: Samples) -> None:
        """Add samples: (n,) float32, mono, 16 kHz."""
        self._sound = np.concatenate([self._sound, samples])
        while len(self._sound) >= WINDOW_SAMPLES + _STEP_SAMPLES:
            self._analyse(self._begin + WINDOW_SAMPLES - _EDGE_SAMPLES)
            self._sound = self._sound[_STEP_SAMPLES:]
            self._begin += _STEP_SAMPLES

    def finish(self, count: SpeakerCount) -> Diarization:
        """Return all turns, when no more samples come. Speakers are numbered by their first turn."""
        end = self._begin + len(self._sound)
        if len(self._sound) > WINDOW_SAMPLES:
            self._analyse(self._begin + WINDOW_SAMPLES - _EDGE_SAMPLES)
            self._begin, self._sound = end - WINDOW_SAMPLES, self._sound[-WINDOW_SAMPLES:]
        if end > self._done:
            self._analyse(end)
        return self._clustered(count)

    def _analyse(self, until: int) -> None:
        """Analyse the first 10 s of the sound, and keep the results between `_done` and `until`."""
        sound = self._sound[:WINDOW_SAMPLES]
        used = self._done, until
        pieces, overlaps = analyse(self._models, sound, self._windows, self._begin, used)
        self._pieces += pieces
        self._overlaps += overlaps
        self._done, self._windows = until, self._windows + 1

    def _clustered(self, count: SpeakerCount) -> Diarization:
        clear = spans.clear(self._pieces)
        if not clear:  # nobody speaks, or never for long enough to be distinguished
            return Diarization(spans.turns(spans.attributed(self._pieces, [], np.ones((1, 1)))))
        voices = np.array([piece.voice for piece in clear], np.float64)
        durations_s = np.array([piece.duration_s for piece in clear])
        centres = clustering.voices(voices, durations_s, count, self._models.plda)
        found = spans.attributed(self._pieces, self._overlaps, centres)
        begins: dict[int, int] = {}
        for span in found:
            begins[span.speaker] = min(span.begin, begins.get(span.speaker, span.begin))
        order = sorted(begins, key=lambda speaker: begins[speaker])
        numbered = [replace(span, speaker=order.index(span.speaker)) for span in found]
        return Diarization(spans.turns(numbered), tuple(centres[each].astype(np.float32) for each in order))
