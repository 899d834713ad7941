"""Synthetic speech, in which each word is a burst of its own loudness, and a recognizer for it."""

import random
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from asr_server.core.audio import FRAME_SAMPLES
from asr_server.live.machine.events import (
    Audio,
    CancelRequest,
    Close,
    Final,
    Transcribe,
    TranscribeFailed,
    TranscribeResult,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import Frame, LiveMachineConfig

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_LEAST_WORD_SAMPLES = 2_000  # a shorter part of a word is misrecognized
_STEP = 0.05


def speech(words, *, word_ms=240, gap_ms=40):
    """int16 (n,): each word a burst whose loudness is its number, with short gaps."""
    parts = []
    for word in words:
        level = int((word + 1) * _STEP * 32_768)
        parts += [np.full(word_ms * 16, level, np.int16), np.zeros(gap_ms * 16, np.int16)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int16)


def silence(ms):
    return np.zeros(ms * 16, np.int16)


def pcm(*parts):
    """Audio of int16 (n,), one after the other."""
    return Audio(np.concatenate(parts).astype("<i2").tobytes())


def frames_of(block):
    """The samples of the frames of a block, or of None."""
    samples = block.samples() if block is not None else silence(0)
    return [samples[at : at + FRAME_SAMPLES] for at in range(0, len(samples), FRAME_SAMPLES)]


def receive(machine, event):
    """The actions after an event; a frame with a burst in more than half of it is speech."""
    frames = frames_of(machine.block(event))
    loud = [np.count_nonzero(np.abs(samples) > _STEP / 2) > FRAME_SAMPLES / 2 for samples in frames]
    return machine.receive(event, [Frame(*each) for each in zip(frames, map(float, loud), strict=True)])


def recognize(audio, prefix=()):
    """Token ids of the words in float32 (n,): a word cut short is recognized as another."""
    levels = np.rint(np.abs(audio) / _STEP).astype(int)
    edges = np.flatnonzero(np.diff(levels)) + 1
    ids = []
    for part in np.split(levels, edges):
        if len(part) and part[0] > 0:
            word = int(part[0]) - 1
            ids.append(word % 10 if len(part) >= _LEAST_WORD_SAMPLES else (word + 1) % 10)
    kept = len(prefix)
    return (*prefix, *ids[kept:])


def result_for(ticket, ids):
    text, offsets = "", []
    for word in ids:
        text += (" " if text else "") + WORDS[word]
        offsets.append(len(text))
    return TranscribeResult(ticket, text, "English" if ids else "", tuple(ids), tuple(offsets), (0.0,) * len(ids))


@dataclass
class Run:
    """A session and a recognizer that answers late or fails with the given chances; all actions are kept."""

    session: LiveMachine
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    delay: float = 0.0  # chance that an answer waits for another event
    failures: float = 0.0
    languages: tuple = ("English",)  # each answer with words names one of these
    mark: str = ""  # after the words of each answer
    audio_of: dict = field(default_factory=dict)
    actions: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    pending: list = field(default_factory=list)

    def feed(self, event):
        """One event and, unless they are delayed, the answers to its requests."""
        self._perform(receive(self.session, event))
        while self.pending and self.rng.random() >= self.delay:
            self.answer()

    def say(self, *parts, size=512):
        """Feed int16 (n,), one after the other, in pieces of `size` samples."""
        whole = np.concatenate(parts)
        for at in range(0, len(whole), size):
            self.feed(pcm(whole[at : at + size]))

    def answer(self):
        """The oldest waiting request is answered, or fails."""
        request = self.pending.pop(0)
        if self.rng.random() < self.failures:
            self._perform(self.session.receive(TranscribeFailed(request.ticket, "transcription_failed", "injected")))
        else:
            result = result_for(request.ticket, recognize(request.audio, request.prefix))
            language = result.language and self.rng.choice(self.languages)
            result = replace(result, language=language, text=result.text + self.mark)
            self._perform(self.session.receive(result))

    def _perform(self, actions):
        self.actions += actions
        for action in actions:
            if isinstance(action, Transcribe):
                self.requests.append(action)
                self.pending.append(action)
                self.audio_of[action.utterance, len(action.audio)] = action.audio
            if isinstance(action, CancelRequest) and self.rng.random() < 0.5:  # a cancelled job may still answer
                self.pending = [p for p in self.pending if p.ticket != action.ticket]

    def finish(self, *, close=True):
        """Close, and let everything be answered."""
        if close:
            self.feed(Close())
        while self.pending:
            self.answer()

    def of(self, kind):
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def finals(self):
        """Numbers, texts and times: what a client keeps."""
        return [(f.utterance, f.text, f.start_samples, f.end_samples, f.ending) for f in self.of(Final)]


def begun(**changes):
    return Run(LiveMachine(LiveMachineConfig(**changes)))


def play(recording, *, rng=None, **changes):
    """The run over a recording, which `rng` cuts anywhere: single bytes, odd splits, large pieces."""
    run = begun(**changes)
    if rng is None:
        run.say(recording)
    else:
        run.rng, rest = rng, recording.astype("<i2").tobytes()
        while rest:
            size = rng.choice([1, 2, 3, 7, 640, 641, 1024, 4096, 14_401, 65_536])
            run.feed(Audio(rest[:size]))
            rest = rest[size:]
    run.finish()
    return run


@pytest.fixture
def talk():
    """Two utterances with short dips and a pause, silence around them."""
    first, second = [speech([1, 2, 3, 4]), silence(200), speech([5, 6])], speech([7, 8, 9])
    return np.concatenate([silence(900), *first, silence(900), second, silence(800)])
