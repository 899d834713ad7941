"""Compares the channels of a recording: which are copies of one sound, and how loud each voice is on other channels.

Two people on channels of their own take turns. While one speaks, the other channel has its own noise or, fainter, the
same voice. The level difference of the two channels therefore has two clusters, far apart. Copies have one cluster,
whatever their gains, and in a room or in music the difference changes little. Copies also have the same waveform,
perhaps late or inverted, which a cross-correlation over all of the audio finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from asr_server.core.audio import SAMPLE_RATE

Samples = NDArray[np.float32]
Levels = NDArray[np.float64]

MOST_S = 600.0  # of a recording; later audio is not compared
SILENCE_DB = -100.0  # the level of a frame without any sound

_PRE_EMPHASIS = 0.95  # against hum and rumble, which channels may share although they are not speech
_FRAME = 1024  # 64 ms: longer than a copy may be late, so a frame and its neighbours hold the same speech
_PER_WINDOW = 4
_WINDOW = _PER_WINDOW * _FRAME  # of the cross-correlation
_FFT = 2 * _WINDOW
_MOST_LAG = SAMPLE_RATE // 20  # 50 ms

# Levels in dB.
_OVER_FLOOR = 10.0  # a frame of speech is this much louder than the channel's noise,
_BELOW_PEAK = 25.0  # and less than this below its loudest frames
_FLOOR_PERCENTILE = 10
_LOUDEST_FRAMES = 5  # a voice has this many; fewer are clicks
_SILENT_BELOW = 40.0  # below the loudest channel
# Between a cluster and the middle. With crosstalk of 15 dB, the clusters are 30 dB apart.
_APART = 12.0
_DIP = 6.0  # a frame may be this much below its neighbours
_OFFSETS = np.arange(-40.0, 41.0, 2.0)  # possible middles between the clusters: the gains may differ

_LEAST_TURNS = 0.5  # share of two people's speech in which only one of them speaks
_LEAST_COPY_CORRELATION = 0.6
_MOST_COPY_SPREAD = 7.0  # dB, of the level difference; copies that are 50 ms apart have 4 dB

# Frames that are enough to decide before the end.
_SURE_ALONE = round(3.0 * SAMPLE_RATE / _FRAME)
_SURE_TOGETHER = round(30.0 * SAMPLE_RATE / _FRAME)
_LOOK_EVERY_S = 5.0

_CROSSTALK_OVER_FLOOR = 3.0
_MOST_CROSSTALK_SPREAD = 5.0  # measured: 0.2 to 4.4, more for later crosstalk; 6.6 for other speech
_LOUD = 15.0  # below the peak: where crosstalk stands out


@dataclass(frozen=True, slots=True)
class ChannelVoice:
    """A channel that is not a copy of an earlier one."""

    channel: int
    clearest: int  # the least noisy of the channel and its copies


@dataclass(frozen=True, slots=True)
class ChannelFindings:
    """The voices on the channels of a recording."""

    voices: tuple[ChannelVoice, ...]  # one for each sound, in the order of the channels
    crosstalk_db: Levels  # [from, to]: how loud a channel is in another, -inf if it is not heard
    speech_share: float  # the time of speech divided by that of the recording, summed over the voices


@dataclass(frozen=True, slots=True)
class _Pair:
    """The comparison of two channels."""

    are_copies: bool
    is_sure: bool  # more audio would not change the result
    alone: tuple[NDArray[np.bool_], NDArray[np.bool_]]  # the frames in which only one of them speaks


def frame_levels(samples: Samples, frame: int) -> Levels:
    """Return the level of each frame in dB, high frequencies raised: (channels, k * frame) float32 -> (channels, k)."""
    signal = _emphasized(samples).reshape(len(samples), -1, frame)
    power = np.einsum("cfs,cfs->cf", signal, signal) / frame
    levels: Levels = 10.0 * np.log10(power + 10.0 ** (SILENCE_DB / 10))
    return levels


def highest_around(levels: Levels, reach: int) -> Levels:
    """Return the highest level of each frame and `reach` frames on either side: (channels, k) -> (channels, k)."""
    if not levels.shape[1]:
        return levels
    padded = np.pad(levels, ((0, 0), (reach, reach)), constant_values=-np.inf)
    highest: Levels = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=1).max(axis=2)
    return highest


def _emphasized(samples: Samples) -> Levels:
    before = np.concatenate((samples[:, :1], samples[:, :-1]), axis=1)
    return samples.astype(np.float64) - _PRE_EMPHASIS * before


class ChannelComparison:
    """Compares the channels of one recording, block by block, in bounded memory."""

    def __init__(self, channels: int) -> None:
        self.channels = channels
        self._pairs = list(combinations(range(channels), 2))
        self._rest: Samples = np.zeros((channels, 0), np.float32)
        self._levels: list[Levels] = []
        self._cross = np.zeros((len(self._pairs), _FFT // 2 + 1), np.complex128)
        self._energies = np.zeros(channels)
        self._seen_s = self._looked_s = 0.0

    def push(self, block: Samples) -> bool:
        """Add samples, (channels, n) float32 at 16 kHz, finite. Returns True if more would not change the result."""
        if self.channels == 1 or self._seen_s >= MOST_S:
            return True
        whole = np.concatenate((self._rest, block), axis=1)
        count = whole.shape[1] // _WINDOW * _WINDOW
        self._rest = whole[:, count:]
        self._add(whole[:, :count])
        self._seen_s += count / SAMPLE_RATE
        if self._seen_s - self._looked_s < _LOOK_EVERY_S:
            return False
        self._looked_s = self._seen_s
        activity = _Activity(self._all_levels())
        return all(self._pair(number, activity).is_sure for number in range(len(self._pairs)))

    def findings(self) -> ChannelFindings:
        """Return what is known so far."""
        activity = _Activity(self._all_levels())
        pairs = {pair: self._pair(number, activity) for number, pair in enumerate(self._pairs)}
        groups: list[list[int]] = []
        for channel in range(self.channels):
            for group in groups:
                if pairs[group[0], channel].are_copies:
                    group.append(channel)
                    break
            else:
                groups.append([channel])
        voices = [ChannelVoice(group[0], max(group, key=lambda one: activity.clarity[one])) for group in groups]
        return ChannelFindings(tuple(voices), _crosstalk(pairs, activity), _speech_share(voices, pairs, activity))

    def _add(self, samples: Samples) -> None:
        if not samples.size:
            return
        self._levels.append(frame_levels(samples, _FRAME))
        windows = _emphasized(samples).reshape(self.channels, -1, _WINDOW)
        spectra = np.fft.rfft(windows, _FFT, axis=2)
        for number, (i, j) in enumerate(self._pairs):
            self._cross[number] += (spectra[i] * spectra[j].conj()).sum(axis=0)
        self._energies += np.einsum("cws,cws->c", windows, windows)

    def _all_levels(self) -> Levels:
        return np.concatenate([np.zeros((self.channels, 0)), *self._levels], axis=1)

    def _pair(self, number: int, activity: _Activity) -> _Pair:
        i, j = self._pairs[number]
        nowhere = np.zeros(activity.active.shape[1], bool)
        if not (activity.speaks[i] and activity.speaks[j]):
            return _Pair(False, False, (nowhere, nowhere))
        alone = activity.alone(i, j)
        both = activity.active[i] & activity.active[j]
        least, turns = min(where.sum() for where in alone), alone[0] | alone[1]
        if least >= _LOUDEST_FRAMES and turns.sum() >= _LEAST_TURNS * (turns | both).sum():
            return _Pair(False, bool(least >= _SURE_ALONE), alone)
        are_copies = self._correlation(number) >= _LEAST_COPY_CORRELATION and activity.spread(i, j) <= _MOST_COPY_SPREAD
        return _Pair(are_copies, bool(both.sum() >= _SURE_TOGETHER), (nowhere, nowhere))

    def _correlation(self, number: int) -> float:
        """Return the highest cross-correlation of two channels at any lag up to 50 ms, whatever its sign: 0 to 1."""
        i, j = self._pairs[number]
        lags = np.fft.irfft(self._cross[number], _FFT)
        near = np.concatenate((lags[: _MOST_LAG + 1], lags[-_MOST_LAG:]))
        return float(np.abs(near).max() / np.sqrt(self._energies[i] * self._energies[j] + 1e-20))


class _Activity:
    """Finds the speech of each channel from the levels (channels, k) of its frames."""

    def __init__(self, levels: Levels) -> None:
        enough = levels.shape[1] >= _LOUDEST_FRAMES
        self.levels = levels
        empty = np.full(len(levels), SILENCE_DB)
        self.peaks = np.sort(levels, axis=1)[:, -_LOUDEST_FRAMES] if enough else empty
        self.floors = np.percentile(levels, _FLOOR_PERCENTILE, axis=1) if enough else empty
        self.clarity = self.peaks - self.floors
        least = np.maximum(self.floors + _OVER_FLOOR, self.peaks - _BELOW_PEAK)
        is_loud = self.peaks > self.peaks.max() - _SILENT_BELOW
        self.active = (levels > least[:, None]) & is_loud[:, None]
        self.speaks = self.active.sum(axis=1) >= _LOUDEST_FRAMES
        self.around = highest_around(levels, 1)

    def alone(self, i: int, j: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the frames in which channel `i` speaks and `j` does not, and the other way round.

        The gains of the channels may differ. Use the offset between them at which only one speaks for most frames.
        """
        over = np.where(self.active[i], self._over(i, j), -np.inf)
        under = np.where(self.active[j], -self._over(j, i), np.inf)
        counts = [((over >= offset + _APART).sum(), (under <= offset - _APART).sum()) for offset in _OFFSETS]
        best = max(range(len(_OFFSETS)), key=lambda place: (min(counts[place]), sum(counts[place])))
        return over >= _OFFSETS[best] + _APART, under <= _OFFSETS[best] - _APART

    def _over(self, i: int, j: int) -> Levels:
        """Return how much louder `i` is than `j`, whose speech may come a little earlier or later."""
        own = np.minimum(self.levels[i] + _DIP, self.around[i])
        difference: Levels = own - self.around[j]
        return difference

    def spread(self, i: int, j: int) -> float:
        """Return the range of the level difference of two channels in dB, without outliers, in windows in which both
        speak."""
        whole = self.levels.shape[1] // _PER_WINDOW * _PER_WINDOW
        parts = (self.active[i] & self.active[j])[:whole].reshape(-1, _PER_WINDOW)
        power = (10.0 ** (self.levels[[i, j], :whole] / 10)).reshape(2, -1, _PER_WINDOW).mean(axis=2)
        differences = 10.0 * np.log10(power[0] / power[1])[parts.sum(axis=1) >= _PER_WINDOW // 2]
        return float(np.ptp(np.percentile(differences, (10, 90)))) if differences.size else np.inf


def _speech_share(voices: list[ChannelVoice], pairs: dict[tuple[int, int], _Pair], activity: _Activity) -> float:
    own = activity.active.copy()
    for (i, j), pair in pairs.items():
        own[i] &= ~pair.alone[1]
        own[j] &= ~pair.alone[0]
    return float(own[[voice.clearest for voice in voices]].sum() / max(1, own.shape[1]))


def _crosstalk(pairs: dict[tuple[int, int], _Pair], activity: _Activity) -> Levels:
    """Return [from, to]: how loud a voice is in another channel compared to its own, if it is louder than the noise
    there and this difference is steady; otherwise -inf."""
    found = np.full((len(activity.levels),) * 2, -np.inf)
    for (i, j), pair in pairs.items():
        for source, target, alone in ((i, j, pair.alone[0]), (j, i, pair.alone[1])):
            loud = alone & (activity.levels[source] > activity.peaks[source] - _LOUD)
            if loud.sum() < _LOUDEST_FRAMES:
                continue
            over_floor = np.median(activity.levels[target, loud]) - activity.floors[target]
            differences = activity.around[target, loud] - activity.around[source, loud]
            spread = np.ptp(np.percentile(differences, (25, 75)))
            if over_floor > _CROSSTALK_OVER_FLOOR and spread < _MOST_CROSSTALK_SPREAD:
                found[source, target] = np.median(differences)
    return found
