"""Doubles of the process that distinguishes speakers, and of the models that it works with."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import strategies as st

from asr_server import demo
from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.errors import AsrError
from asr_server.core.idle import IdleTimer
from asr_server.features.speakers.diarization.models import WINDOW_SAMPLES
from asr_server.features.speakers.diarization.turns import Diarization, Turn
from asr_server.features.speakers.diarization.windows import SpeakerModels

_FRAME = 512
_FRAME_MS = 1000 * _FRAME / SAMPLE_RATE


def tone(hertz, seconds, *, loudness=0.3):
    """A person who speaks without a pause: int16 at 16 kHz."""
    wave = np.sin(np.arange(int(seconds * SAMPLE_RATE)) * 2 * np.pi * hertz / SAMPLE_RATE)
    return (wave * loudness * 32767).astype(np.int16)


class ToneSpeakers:
    """A double to which each tone is a person. It analyses the samples, so that it also works with files.

    Voice prints are spectra, (256,) float32 of length 1. `calls`: how many recordings were analysed.
    """

    voice_model = "tones"
    pid = None
    idle = IdleTimer(0.0)
    calls = 0

    async def diarize(self, samples, count=None):
        """Return a turn for each run of a tone, whatever `count` says."""
        self.calls += 1
        frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
        loud = np.abs(frames).max(axis=1, keepdims=True) > 0.02
        spectra = np.abs(np.fft.rfft(frames * np.hanning(_FRAME)))[:, :256] * loud  # zeros for silence
        pitches = [int(each.argmax()) if each.max() else -1 for each in spectra]
        people = list(dict.fromkeys(pitch for pitch in pitches if pitch >= 0))
        turns, at = [], 0
        for pitch, run in groupby(pitches):
            end = at + len(list(run))
            if pitch >= 0:
                turns.append(Turn(people.index(pitch), int(at * _FRAME_MS), int(end * _FRAME_MS)))
            at = end
        means = [spectra[np.array(pitches) == pitch].mean(axis=0) for pitch in people]
        voices = tuple((mean / np.linalg.norm(mean)).astype(np.float32) for mean in means)
        return Diarization(tuple(turns), voices)

    async def close(self):
        """Do nothing: there is no process."""


@dataclass
class ScriptedLiveSpeakers(ToneSpeakers):
    """Takes the place of `SpeakerClient`."""

    turns: list[Turn]  # the true turns
    voices: dict[int, np.ndarray] = field(default_factory=dict)  # of each speaker
    voice_ms: int = 3_000  # the speech after which a speaker is heard well enough for a voice
    doubt_ms: int = 0  # for this long after its beginning, a turn is reported as speaker 9's
    horizon_ms: int = 2_000  # how long the audio is ahead of the horizon
    fails_ms: float = float("inf")  # the audio at which it fails
    hangs_ms: float = float("inf")  # the audio from which on it no longer answers
    sessions: list[ScriptedLiveSession] = field(default_factory=list)

    async def live(self):
        self.sessions.append(ScriptedLiveSession(self))
        return self.sessions[-1]


@dataclass
class ScriptedLiveSession:
    script: ScriptedLiveSpeakers
    samples: int = 0
    settled_ms: int = 0
    closed: bool = False
    said: dict[int, Turn] = field(default_factory=dict)
    voice_prints: dict[int, np.ndarray] = field(default_factory=dict)

    async def push(self, samples):
        script = self.script
        self.samples += len(samples)
        heard_ms = self.samples // 16
        if heard_ms > script.hangs_ms:
            await asyncio.Event().wait()
        if heard_ms > script.fails_ms:
            raise AsrError("The process was lost.")
        self.settled_ms = max(0, heard_ms - script.horizon_ms)
        changed = []
        for number, turn in enumerate(script.turns):
            if turn.start_ms >= heard_ms:
                continue
            speaker = 9 if heard_ms - turn.start_ms < script.doubt_ms else turn.speaker
            now = replace(turn, speaker=speaker, end_ms=min(turn.end_ms, heard_ms))
            if self.said.get(number) != now:
                self.said[number] = now
                changed.append(now)
        spoken_ms = Counter()
        for turn in self.said.values():
            spoken_ms[turn.speaker] += turn.end_ms - turn.start_ms
        heard = {number for number in script.voices if spoken_ms[number] >= script.voice_ms}
        if heard != set(self.voice_prints):
            self.voice_prints = {number: script.voices[number] for number in heard}
        return tuple(changed)

    def close(self):
        self.closed = True


FRAMES = 589  # of a window, as the real segmentation has them


class NumberedVoices:
    """Models for sound whose samples say who speaks: 0 nobody, 1 to 9 that person, 12 the persons 1 and 2 at once.

    The decimals are noise, which makes each voice vector a little different. `windows`: how many so far.
    """

    def __init__(self):
        self.windows = 0
        self.models = SpeakerModels(self.segmentation, self.embedding)

    def segmentation(self, sound):
        """Return the activity of up to three people, whose order differs between windows, as with the real model."""
        self.windows += 1
        window = np.zeros(WINDOW_SAMPLES, np.float32)
        window[: len(sound)] = sound
        said = window[((np.arange(FRAMES) + 0.5) * WINDOW_SAMPLES / FRAMES).astype(int)].astype(int)
        people = [digit for value in dict.fromkeys(said.tolist()) for digit in str(value) if digit != "0"]
        active = np.zeros((FRAMES, 3), bool)
        for place, person in enumerate(list(dict.fromkeys(people))[:3]):
            active[:, place] = [person in str(value) for value in said]
        return active

    def embedding(self, sound):
        """(64,): a direction for each person."""
        spoken = sound[sound >= 1]
        noise = np.random.default_rng(int(1e6 * float(spoken.sum() % 1))).normal(size=64)
        person = np.eye(64)[np.bincount(spoken.astype(int)).argmax() % 10]
        return (person + 0.8 * noise / np.linalg.norm(noise)).astype(np.float32)


def numbered(*parts):
    """Sound for `NumberedVoices`. `parts`: who speaks, and for how many seconds."""
    said = np.concatenate([np.full(round(seconds * SAMPLE_RATE), who, np.float32) for who, seconds in parts])
    noise = np.random.default_rng(len(said)).uniform(0, 0.5, len(said)).astype(np.float32)
    return np.where(said, said + noise, 0).astype(np.float32)


CONVERSATIONS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 1, 2, 3, 12, 23]), st.floats(0.05, 9.0)), min_size=1, max_size=10
).map(lambda parts: numbered(*parts))


@pytest.fixture(scope="package")
def conversation():
    """20 s of two real people who speak in turns, (n,) float32 at 16 kHz. The speaker changes at 4.5, 7.5, 13.4 s."""
    one, _ = soundfile.read(demo.speech().recording, dtype="float32")
    folder = Path(__file__).parents[5] / "E2Etest" / "real_speech"
    two, four = (soundfile.read(folder / f"librivox_{name}.flac", dtype="float32")[0] for name in ("0880", "0870"))
    return np.concatenate([one[:72_000], two, one[82_000:], four])
