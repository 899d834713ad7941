"""The speakers of a live session, found while it runs.

Every second, the network finds who speaks in a window that ends now. Then all pieces of the session are clustered
again, and each cluster keeps the number of the speaker with whom it shares most speech. A first guess may be wrong: it
is corrected as more speech comes, until it is older than the horizon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from asr_server.core.audio import SAMPLE_RATE, samples_to_ms
from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.features.speakers.diarization import clustering, spans
from asr_server.features.speakers.diarization.models import WINDOW_SAMPLES, Samples
from asr_server.features.speakers.diarization.spans import VoiceSpan
from asr_server.features.speakers.diarization.turns import SpeakerCount, Turn, VoicePrint
from asr_server.features.speakers.diarization.windows import Overlap, Piece, SpeakerModels, analyse

# Labels of speech this long ago never change. A piece that began this long ago is settled as a whole.
HORIZON_S = 15.0
_HORIZON_SAMPLES = int(HORIZON_S * SAMPLE_RATE)
_STEP_SAMPLES = SAMPLE_RATE
# The network is unsure about the last moments of a window.
_EDGE_SAMPLES = SAMPLE_RATE // 2
# Seconds of speech after which a speaker's voice is compared with named voices, early and then more exactly. At 2 s, a
# person is taken for somebody else seven times as often as at 4 s (see speakers.md). After 12 s, more speech changes
# little, and the beginning of a turn of that length is about to pass the horizon, after which no name is given.
VOICE_PRINT_S = (3.0, 6.0, 12.0)
# A new voice becomes a speaker after this much speech. A sound that is no voice rarely lasts as long.
_NEW_SPEAKER_S = 1.0
# Speech that has no speaker yet waits this long for more speech, before the nearest speaker gets it.
_WAIT_SAMPLES = 3 * SAMPLE_RATE // 2
# More pieces would make the clustering take longer than the speech. The speaker with most pieces loses the oldest one.
MOST_PIECES = 240
_MOST_SPEAKERS = 20
_UNKNOWN = -1


class LiveDiarizer:
    """Finds the speakers of one session. It keeps 10 s of sound and a bounded number of voice vectors. For one
    thread."""

    def __init__(self, models: SpeakerModels) -> None:
        self._models = models
        self._sound = np.zeros(0, np.float32)
        self._end = 0  # samples so far
        self._done = 0  # the sample up to which there are pieces
        self._settled = 0  # the sample up to which no label changes
        self._windows = 0
        self._speakers: dict[Piece, int] = {}  # pieces in order, and their speakers
        self._overlaps: list[Overlap] = []
        self._final: set[int] = set()  # speakers with settled speech, whose numbers never mean anybody else
        self._told: tuple[Turn, ...] = ()
        self._reached: dict[int, int] = {}  # how many steps of `VOICE_PRINT_S` each speaker has reached
        self._voice_prints: dict[int, VoicePrint] = {}

    @property
    def settled_ms(self) -> int:
        return samples_to_ms(self._settled)

    def push(self, samples: Samples) -> tuple[Turn, ...]:
        """Add at most 2 s of samples. Returns all turns after `settled_ms`, if any of them is new or has changed."""
        self._sound = np.concatenate([self._sound, samples])[-WINDOW_SAMPLES:]
        self._end += len(samples)
        if self._end - _EDGE_SAMPLES - self._done < _STEP_SAMPLES:
            return ()
        self._listen()
        turns = spans.turns(self._unsettled())
        self._settle()
        if turns == self._told:
            return ()
        self._told = turns
        return turns

    def take_voice_prints(self) -> dict[int, VoicePrint] | None:
        """Return the mean voices of all speakers who were heard for long enough; None if they are the same as at the
        last call.

        A speaker disappears if two numbers briefly meant the same person. The number may then mean somebody else.
        """
        spoken: dict[int, list[Piece]] = {}
        for piece in spans.clear(list(self._speakers)):
            spoken.setdefault(self._speakers[piece], []).append(piece)
        spoken.pop(_UNKNOWN, None)
        before = self._reached
        steps = {speaker: max(_steps(pieces), before.get(speaker, 0)) for speaker, pieces in spoken.items()}
        self._reached = {speaker: reached for speaker, reached in steps.items() if reached}
        if self._reached == before:
            return None
        self._voice_prints = {
            speaker: self._voice_prints[speaker] if reached == before.get(speaker) else _mean_voice(spoken[speaker])
            for speaker, reached in self._reached.items()
        }
        return self._voice_prints

    def _listen(self) -> None:
        begin, until = self._end - len(self._sound), self._end - _EDGE_SAMPLES
        used = max(self._done, begin), until
        pieces, overlaps = analyse(self._models, self._sound, self._windows, begin, used)
        self._done, self._windows = until, self._windows + 1
        self._overlaps += overlaps
        self._speakers |= dict.fromkeys(pieces, _UNKNOWN)
        if spans.clear(pieces):
            self._cluster()

    def _cluster(self) -> None:
        """Assign all pieces that are not settled to speakers again."""
        clear = spans.clear(list(self._speakers))
        voices = np.array([piece.voice for piece in clear], np.float64)
        durations_s = np.array([piece.duration_s for piece in clear])
        count = SpeakerCount(at_most=_MOST_SPEAKERS)
        centres = clustering.voices(voices, durations_s, count, self._models.plda)
        heard = [piece for piece in self._speakers if piece.voice is not None]
        likeness = clustering.unit(np.array([piece.voice for piece in heard], np.float64)) @ centres.T
        clusters = dict(zip(heard, likeness.argmax(axis=1).tolist(), strict=True))
        numbers = self._numbered(clusters, len(centres))
        for piece, cluster in clusters.items():
            if not self._is_settled(piece):
                self._speakers[piece] = numbers[cluster]

    def _numbered(self, clusters: dict[Piece, int], count: int) -> list[int]:
        """Return the speaker of each cluster: the one with whom it shares most speech. Settled speech counts twice, and
        no two clusters get the same speaker."""
        shared = np.zeros((count, MAX_SPEAKERS))
        spoken = np.zeros(count)
        for piece, cluster in clusters.items():
            spoken[cluster] += piece.duration_s
            if self._speakers[piece] != _UNKNOWN:
                shared[cluster, self._speakers[piece]] += piece.duration_s * (2 if self._is_settled(piece) else 1)
        numbers = [_UNKNOWN] * count
        while shared.max() > 0:
            cluster, speaker = divmod(int(shared.argmax()), MAX_SPEAKERS)
            numbers[cluster] = speaker
            shared[cluster, :] = shared[:, speaker] = 0
        free = [n for n in range(MAX_SPEAKERS) if n not in self._final and n not in self._speakers.values()]
        for cluster in range(count):
            if numbers[cluster] == _UNKNOWN and spoken[cluster] >= _NEW_SPEAKER_S and free:
                numbers[cluster] = free.pop(0)
        return numbers

    def _unsettled(self) -> list[VoiceSpan]:
        pieces = [piece for piece in self._speakers if not self._is_settled(piece)]
        known = [piece for piece in pieces if self._speakers[piece] != _UNKNOWN]
        found = [VoiceSpan(piece.begin, piece.end, self._speakers[piece]) for piece in known]
        if found:
            waited = [piece for piece in pieces if self._done - piece.end >= _WAIT_SAMPLES]
            unknown = [piece for piece in waited if self._speakers[piece] == _UNKNOWN]
            found += spans.of_nearest([VoiceSpan(piece.begin, piece.end, _UNKNOWN) for piece in unknown], found)
        for overlap in self._overlaps:
            several = {_most(said) for alone in overlap.tracks.values() if (said := self._said(alone))}
            found += [VoiceSpan(overlap.begin, overlap.end, speaker) for speaker in sorted(several)]
        return found

    def _said(self, parts: Sequence[tuple[int, int]]) -> Counter[int]:
        """Count how much of the speech in these parts each speaker has. The parts are where a window found only one
        person, and the pieces there come from windows before it."""
        said = Counter[int]()
        for piece, speaker in self._speakers.items():
            if speaker != _UNKNOWN and parts and piece.end > parts[0][0]:
                shared = (min(end, piece.end) - max(begin, piece.begin) for begin, end in parts)
                said[speaker] += sum(samples for samples in shared if samples > 0)
        return +said  # without speakers who have no speech there

    def _is_settled(self, part: Piece | Overlap) -> bool:
        return part.end <= self._settled

    def _settle(self) -> None:
        horizon = self._end - _HORIZON_SAMPLES
        parts: list[Piece | Overlap] = [*self._speakers, *self._overlaps]
        begun = [part.end for part in parts if part.begin < horizon]
        self._settled = max(0, horizon, *begun)
        self._overlaps = [overlap for overlap in self._overlaps if not self._is_settled(overlap)]
        for piece in [piece for piece in self._speakers if self._is_settled(piece)]:
            if piece.voice is None or self._speakers[piece] == _UNKNOWN:
                del self._speakers[piece]
            else:
                self._final.add(self._speakers[piece])
        while len(self._speakers) > MOST_PIECES:
            most = _most(Counter(self._speakers.values()))
            del self._speakers[next(piece for piece, speaker in self._speakers.items() if speaker == most)]


def _steps(pieces: list[Piece]) -> int:
    spoken_s = sum(piece.duration_s for piece in pieces)
    return sum(spoken_s >= enough_s for enough_s in VOICE_PRINT_S)


def _mean_voice(pieces: list[Piece]) -> VoicePrint:
    voices = np.array([piece.voice for piece in pieces], np.float64)
    return clustering.mean_voice(voices, np.array([piece.duration_s for piece in pieces]))


def _most(counts: Counter[int]) -> int:
    """Return the most frequent key. `Counter.most_common` would import a module, which the confined process cannot."""
    return max(counts, key=counts.__getitem__)
