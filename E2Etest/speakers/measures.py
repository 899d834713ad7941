"""Measures of the recognition of speakers: diarisation error rate, and words with the wrong speaker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from E2Etest.speakers.conversations import Speech, SpokenWord

# The times of words are wrong by less.
NEAR_S = 1.0


@dataclass(frozen=True)
class DiarizationError:
    """Seconds of speech: of the reference, missed, heard where nobody speaks, and given to the wrong speaker.

    Where several people speak at once the time of each counts. So all of it can be more than the recording is long.
    """

    reference_s: float
    missed_s: float
    false_alarm_s: float
    confused_s: float

    def __add__(self, other: DiarizationError) -> DiarizationError:
        return DiarizationError(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def rate(self) -> float:
        """The diarisation error rate (DER): errors over speech. Infinite for errors where nobody speaks."""
        errors_s = self.missed_s + self.false_alarm_s + self.confused_s
        if not errors_s:
            return 0.0
        return errors_s / self.reference_s if self.reference_s else float("inf")


def diarization_error(reference: Sequence[Speech], found: Sequence[Speech], collar_s: float = 0.0) -> DiarizationError:
    """The error with the best one-to-one mapping of the found speakers to the true ones.

    Nothing is scored within `collar_s` of a place where the reference's speech of somebody begins or ends. Overlapping
    speech is scored. Speech of one speaker that overlaps with itself counts once.
    """
    edges = [at for part in reference for at in (part.start_s, part.end_s)]
    collars = [(at - collar_s, at + collar_s) for at in edges]
    times = np.unique([*edges, *(at for part in found for at in (part.start_s, part.end_s)), *sum(collars, ())])
    if len(times) < 2:
        return DiarizationError(0.0, 0.0, 0.0, 0.0)
    middles = (times[:-1] + times[1:]) / 2
    weights = np.diff(times)
    for start_s, end_s in collars:
        weights[(middles > start_s) & (middles < end_s)] = 0.0
    true, heard = _activity(reference, middles), _activity(found, middles)
    together = (true * weights) @ heard.T
    correct_s = together[linear_sum_assignment(-together)].sum()
    true_count, heard_count = true.sum(axis=0), heard.sum(axis=0)
    return DiarizationError(
        float(true_count @ weights),
        float(np.maximum(true_count - heard_count, 0) @ weights),
        float(np.maximum(heard_count - true_count, 0) @ weights),
        float(np.minimum(true_count, heard_count) @ weights - correct_s),
    )


@dataclass(frozen=True)
class SpeakerWords:
    """The number of words of the reference that were recognised, and of those with another speaker or none."""

    recognized: int
    wrong_speaker: int

    def __add__(self, other: SpeakerWords) -> SpeakerWords:
        return SpeakerWords(self.recognized + other.recognized, self.wrong_speaker + other.wrong_speaker)

    @property
    def rate(self) -> float:
        """The share of the recognised words that have the wrong speaker; 0 for none recognised."""
        return self.wrong_speaker / self.recognized if self.recognized else 0.0


def speaker_words(reference: Sequence[SpokenWord], found: Sequence[SpokenWord]) -> SpeakerWords:
    """Words that both texts have in an alignment with the fewest word errors, by the best mapping of speakers.

    Words that were not recognised have no speaker to compare. A word without a speaker has the wrong one. A word is not
    taken for one that was said more than `NEAR_S` before or after it: without this rule, of two people who say digits
    the one who is not recognised would be compared with the other.
    """
    pairs = aligned(reference, found)
    counts = Counter((reference[i].speaker, found[j].speaker) for i, j in pairs if found[j].speaker is not None)
    true, heard = sorted({a or "" for a, _ in counts}), sorted({b or "" for _, b in counts})
    table = np.array([[counts[a, b] for b in heard] for a in true]).reshape(len(true), len(heard))
    return SpeakerWords(len(pairs), len(pairs) - int(table[linear_sum_assignment(-table)].sum()))


def aligned(said: Sequence[SpokenWord], written: Sequence[SpokenWord]) -> list[tuple[int, int]]:
    """Return pairs of places of the same words in both sequences, by an alignment with the fewest word errors."""
    equal = _equal(said, written)
    distances = _distances(equal)
    pairs = []
    i, j = len(said), len(written)
    while i and j:
        if equal[i - 1, j - 1] and distances[i, j] == distances[i - 1, j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif distances[i, j] == distances[i - 1, j - 1] + 1:
            i, j = i - 1, j - 1
        elif distances[i, j] == distances[i - 1, j] + 1:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _equal(said: Sequence[SpokenWord], written: Sequence[SpokenWord]) -> np.ndarray:
    """bool (len(said), len(written)): the same text at about the same time."""
    numbers = {text: number for number, text in enumerate({word.text for word in [*said, *written]})}
    left = np.array([(numbers[word.text], word.start_s, word.end_s) for word in said]).reshape(-1, 3)
    right = np.array([(numbers[word.text], word.start_s, word.end_s) for word in written]).reshape(-1, 3)
    before = left[:, None, 1] - right[None, :, 2] > NEAR_S
    after = right[None, :, 1] - left[:, None, 2] > NEAR_S
    return (left[:, None, 0] == right[None, :, 0]) & ~before & ~after


def _activity(speech: Sequence[Speech], middles: np.ndarray) -> np.ndarray:
    """float64 (speakers, times): 1 where each one speaks."""
    names = sorted({part.speaker for part in speech})
    active = np.zeros((len(names), len(middles)))
    for part in speech:
        active[names.index(part.speaker), (middles > part.start_s) & (middles < part.end_s)] = 1.0
    return active


def _distances(equal: np.ndarray) -> np.ndarray:
    """int32 (n + 1, m + 1): the Levenshtein distance of each pair of beginnings, from bool (n, m)."""
    places = np.arange(equal.shape[1] + 1, dtype=np.int32)
    rows = np.empty((len(equal) + 1, len(places)), np.int32)
    rows[0] = places
    for i, row in enumerate(equal, 1):
        rows[i, 0] = i
        rows[i, 1:] = np.minimum(rows[i - 1, :-1] + ~row, rows[i - 1, 1:] + 1)
        # An insertion costs one a place, so the best way along a row is a running minimum without that slope.
        rows[i] = np.minimum.accumulate(rows[i] - places) + places
    return rows
