"""Conversations of real people with known turns and words, put together from their phrases.

Speakers differ in loudness, and some are on the telephone. Between turns are pauses, and some changes of speaker
overlap. What a seed gives does not change as long as the recordings do not.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import av
import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from E2Etest.drive import recordings
from E2Etest.speakers.voices import USUAL_RMS, Phrase, voices

OVERLAPS_S = (0.2, 1.0)
TELEPHONE_HZ = (300, 3400)
MUSIC_DB = -12.0
MINUTES = (2, 3, 4, 6, 10)
MOST_LENGTH_S = 12 * 60


class Sound(Enum):
    """The sound next to the voices, or the line that they are heard through."""

    ROOM = "noise of -65 to -50 dB"
    NOISE = "noise of -40 dB"
    TELEPHONE = "each voice through AMR narrowband, the codec of mobile telephony"
    MUSIC = "music of a film, 12 dB below speech of the usual loudness"


@dataclass(frozen=True)
class Speech:
    """Somebody speaks, without a pause of more than half a second."""

    speaker: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class SpokenWord:
    """A word of a transcript and when it was said, or of the reference and between what times; and who spoke it."""

    text: str
    speaker: str | None
    start_s: float = 0.0
    end_s: float = 0.0


@dataclass(frozen=True)
class Conversation:
    """float32 (speakers, n), a track for each, and `background` (n,); what is said in it, in order of time."""

    speakers: tuple[str, ...]
    tracks: np.ndarray
    background: np.ndarray
    speech: tuple[Speech, ...]
    words: tuple[SpokenWord, ...]
    changes: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.background) / SAMPLE_RATE

    def mono(self) -> np.ndarray:
        """Everybody on one channel, float32 (n,)."""
        return np.clip(self.tracks.sum(axis=0) + self.background, -1, 1)

    def channels(self) -> np.ndarray:
        """A channel for each speaker, float32 (speakers, n)."""
        return np.clip(self.tracks + self.background, -1, 1)


def conversation(
    seed: int,
    speakers: int,
    seconds: float,
    sound: Sound = Sound.ROOM,
    among: Mapping[str, Sequence[Phrase]] | None = None,
) -> Conversation:
    """A conversation of about that length between so many people, of `among` with these phrases, or of all eight.

    The same arguments give the same samples.
    """
    assert seconds <= MOST_LENGTH_S
    rng = np.random.default_rng(seed)
    phrases = among or voices()
    names = tuple(str(name) for name in rng.choice(sorted(phrases), speakers, replace=False))
    placed = _place(rng, {name: phrases[name] for name in names}, seconds)
    length = int((max(one.end_s for one in placed) + 0.5) * SAMPLE_RATE)
    tracks = np.zeros((speakers, length), np.float32)
    for one in placed:
        at = int(one.start_s * SAMPLE_RATE)
        tracks[names.index(one.speaker), at : at + len(one.audio)] += one.audio
    present = tuple(name for name in names if any(one.speaker == name for one in placed))
    assert present == names, "the conversation is too short for everybody to speak"
    if sound is Sound.TELEPHONE:
        tracks = np.stack([_through_amr(track) for track in tracks])
    return Conversation(
        names,
        tracks,
        _music(rng, length) if sound is Sound.MUSIC else _noise(rng, length, _noise_db(rng, sound)),
        tuple(sorted((part for one in placed for part in one.speech), key=lambda part: (part.start_s, part.speaker))),
        tuple(
            SpokenWord(word, one.speaker, one.speech[0].start_s, one.speech[-1].end_s)
            for one in placed
            for word in one.phrase.words
        ),
        sum(a.speaker != b.speaker for a, b in pairwise(placed)),
    )


def usual(seed: int, sound: Sound = Sound.ROOM, among: Collection[str] = ()) -> Conversation:
    """2 to 4 people, 2 to 10 minutes. The algorithm was chosen on seeds below 100, and is measured on others."""
    phrases = {name: voices()[name] for name in among}
    return conversation(seed, 2 + seed % 3, 60 * MINUTES[seed % len(MINUTES)], sound, phrases)


@dataclass(frozen=True)
class _Placed:
    """A phrase at its time and level."""

    speaker: str
    phrase: Phrase
    start_s: float
    audio: np.ndarray

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.audio) / SAMPLE_RATE

    @property
    def speech(self) -> list[Speech]:
        return [Speech(self.speaker, self.start_s + a, self.start_s + b) for a, b in self.phrase.speech]


def _place(rng: np.random.Generator, phrases: Mapping[str, Sequence[Phrase]], seconds: float) -> list[_Placed]:
    """Phrases until the time is over: nobody's is repeated before all of theirs have been said."""
    names = tuple(phrases)
    level_db = {name: rng.uniform(-9, 0) for name in names}
    telephone = {name: rng.random() < 0.25 for name in names}
    left: dict[str, list[int]] = {name: [] for name in names}
    waiting = list(names)  # everybody speaks at least once, in this order, in the first half
    placed: list[_Placed] = []
    end_s = 0.5
    while end_s < seconds or waiting:
        speaker = waiting.pop(0) if waiting and rng.random() < 0.5 else _next_speaker(rng, names, placed)
        if speaker in waiting:
            waiting.remove(speaker)
        if not left[speaker]:
            left[speaker] = rng.permutation(len(phrases[speaker])).tolist()
        phrase = phrases[speaker][left[speaker].pop()]
        audio = phrase.audio * np.float32(10 ** ((level_db[speaker] + rng.uniform(-2, 2)) / 20))
        audio = _band_passed(audio) if telephone[speaker] else audio
        start_s = _start_s(rng, speaker, phrase, placed) if placed else end_s
        placed.append(_Placed(speaker, phrase, start_s, audio))
        end_s = max(end_s, placed[-1].end_s)
    return placed


def _next_speaker(rng: np.random.Generator, names: tuple[str, ...], placed: list[_Placed]) -> str:
    """Mostly somebody else than before."""
    others = [name for name in names if not placed or name != placed[-1].speaker]
    return str(rng.choice(others if others and rng.random() < 0.85 else names))


def _start_s(rng: np.random.Generator, speaker: str, phrase: Phrase, placed: list[_Placed]) -> float:
    """Return when the phrase begins: its first speech after a pause, or before the end of another's phrase."""
    before = placed[-1]
    said_until_s = max(one.speech[-1].end_s for one in placed[-2:])
    lead_s = phrase.speech[0][0]
    if speaker != before.speaker and rng.random() < 0.3:
        own_s = max((one.end_s for one in placed if one.speaker == speaker), default=0.0)
        overlap_s = min(rng.uniform(*OVERLAPS_S), (before.speech[-1].end_s - before.speech[0].start_s) / 2)
        return max(before.speech[-1].end_s - overlap_s - lead_s, own_s)
    pause_s = rng.uniform(0.1, 1.2) if rng.random() < 0.8 else rng.uniform(1.2, 4.0)
    return max(said_until_s + pause_s - lead_s, before.start_s)


def _band_passed(audio: np.ndarray) -> np.ndarray:
    spectrum = np.fft.rfft(audio)
    hz = np.fft.rfftfreq(len(audio), 1 / SAMPLE_RATE)
    spectrum[(hz < TELEPHONE_HZ[0]) | (hz > TELEPHONE_HZ[1])] = 0
    return np.fft.irfft(spectrum, len(audio)).astype(np.float32)


def _noise_db(rng: np.random.Generator, sound: Sound) -> float:
    return -40.0 if sound is Sound.NOISE else rng.uniform(-65, -50)


def _noise(rng: np.random.Generator, count: int, level_db: float) -> np.ndarray:
    return rng.normal(0, 10 ** (level_db / 20), count).astype(np.float32)


def _music(rng: np.random.Generator, count: int) -> np.ndarray:
    """The music of the film, again and again from some place."""
    music = film_music()
    level = 10 ** (MUSIC_DB / 20) * USUAL_RMS / np.sqrt(np.mean(music.astype(np.float64) ** 2))
    return np.resize(np.roll(music, int(rng.integers(len(music)))) * np.float32(level), count)


def film_music() -> np.ndarray:
    """float32 (n,): 10 s of music of *Night of the Living Dead*, in which nobody speaks."""
    (clip,) = recordings.real_clips("film_20s")
    return recordings.waveform(clip.path)[1 * SAMPLE_RATE : 11 * SAMPLE_RATE]


def _through_amr(audio: np.ndarray) -> np.ndarray:
    """float32 (n,), coded at 8 kHz and decoded again."""
    pcm = (audio * 32767).astype(np.int16)
    coded = recordings.encoded("amr", "libopencore_amrnb", pcm, rate=8000)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
    with av.open(io.BytesIO(coded)) as container:
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    frames += resampler.resample(None)
    heard = np.concatenate([frame.to_ndarray().ravel() for frame in frames]).astype(np.float32) / 32768
    return np.pad(heard, (0, max(0, len(audio) - len(heard))))[: len(audio)]
