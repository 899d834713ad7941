"""The times of a live session in any order of speech, pauses, actions, delays and turns.

The order of utterances and the account of the samples are those of live/machine/session_invariants_test.py.
"""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.audio.segmentation import SpeechSpan
from asr_server.core.audio import SAMPLE_RATE, samples_to_ms
from asr_server.features.speakers.diarization.turns import Turn
from asr_server.features.speakers.live_labels import SpeakerLabels
from asr_server.live.inference import FinalWordTimes
from asr_server.live.machine.conftest import Run, silence, speech
from asr_server.live.machine.events import (
    Audio,
    Configure,
    Final,
    Flush,
    Interrupted,
    Partial,
    Reset,
    ResetDone,
    Transcribe,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig
from asr_server.recordings.requests import WordTimes
from asr_server.recordings.span import time_words
from asr_server.schedule.job import Priority
from asr_server.subtitle import cue_segmentation
from asr_server.subtitle.cue_segmentation import Passage
from asr_server.subtitle.cues import CueConfig

_LIMITS = {"max_utterance_samples": 3 * SAMPLE_RATE, "max_pause_samples": 12_000, "margin_samples": 3_200}


def _events(rng):
    """Speech and pauses in pieces cut anywhere, with actions in the middle of anything."""
    for _ in range(12):
        if rng.random() < 0.3:
            rules = TurnConfig(manual=rng.random() < 0.5, min_silence_ms=rng.choice([300, 500, 1_200]))
            yield rng.choice([Flush(), Reset(), Interrupted(), Configure(rules)])
            continue
        words = [rng.randrange(10) for _ in range(rng.randint(1, 12))]
        pcm = rng.choice([speech(words), silence(rng.choice([40, 200, 900, 1_500]))])
        data, cut = pcm.astype("<i2").tobytes(), rng.choice([2_001, 4_095, 30_001])
        yield from (Audio(data[at : at + cut]) for at in range(0, len(data), cut))


class Session:
    """A session of a machine, and what a client keeps of it."""

    def __init__(self, rng):
        self.rng, self.seen = rng, 0
        self.run = Run(LiveMachine(LiveMachineConfig(**_LIMITS)), rng, delay=0.7)
        self.words, self.labels = [], SpeakerLabels()
        self.word_times = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, self.words.append)
        self.shown = {}  # of each utterance: its last text
        self.settled = {}  # of each utterance: the speakers of its characters, which do not change
        self.horizon_ms = 0

    @property
    def clock_ms(self):
        return samples_to_ms(self.run.session.clock_samples)

    def look(self):
        """Take the new actions; now and then it becomes known who spoke."""
        for action in self.run.actions[self.seen :]:
            match action:
                case Transcribe():
                    self.word_times.on_request(action)
                case Partial() | Final():
                    self.on_text(action)
                case ResetDone(utterance=int(number)):
                    self.labels.discard(number)
                    self.shown.pop(number, None)
        self.seen = len(self.run.actions)
        if self.rng.random() < 0.3:
            times = sorted(self.rng.randint(self.horizon_ms, self.clock_ms) for _ in range(4))
            found = [Turn(self.rng.randrange(3), a, b) for a, b in pairwise(times) if a < b]
            self.horizon_ms = max(self.horizon_ms, self.clock_ms - self.rng.randint(0, 2_000))
            for changed in self.labels.on_turns(found, self.horizon_ms):
                self.on_labels(changed)

    def on_text(self, text):
        """The end of the audio that a text is made from never decreases."""
        before = self.shown.setdefault(text.utterance, text)
        assert before.start_samples == text.start_samples <= before.end_samples
        assert isinstance(text, Final) or before.end_samples <= text.end_samples
        assert text.end_samples <= self.run.session.clock_samples
        self.shown[text.utterance] = text
        self.on_labels(self.labels.on_text(text))
        if isinstance(text, Final):
            places = [at for part in text.parts for at in (part.start_samples, part.end_samples)]
            assert [text.start_samples, *places, text.end_samples] == sorted(
                [text.start_samples, *places, text.end_samples]
            )
            self.word_times.on_final(text)

    def on_labels(self, speakers):
        """The labels cover the committed text; settled ones stay."""
        text = self.shown[speakers.utterance]
        committed = text.text if isinstance(text, Final) else text.committed
        assert "".join(run.text for run in speakers.runs) == committed
        labels = [run.speaker for run in speakers.runs for _ in run.text]
        assert self.settled.get(speakers.utterance, labels) == labels
        if speakers.settled:
            self.settled[speakers.utterance] = labels


async def _of_a_recording(part, language):
    """The words of a span of the same speech in a recording."""
    span = SpeechSpan(part.start_samples, part.end_samples, np.zeros(0, np.float32), 1.0)
    return await time_words(None, span, part.text, language, WordTimes.ESTIMATED, priority=Priority.BULK)


@pytest.mark.slow("tries many orders of speech and labels")
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
async def test_parts_words_and_cues_lie_one_behind_the_other_inside_the_audio(seed):
    """The words are those that a recording with the same speech has."""
    session = Session(random.Random(seed))
    for event in _events(session.rng):
        session.run.feed(event)
        session.look()
        await session.word_times.wait()
    session.run.finish(close=False)
    session.run.feed(Flush())
    session.run.finish(close=False)
    session.look()
    await session.word_times.wait()

    finals = {final.utterance: final for final in session.run.of(Final)}
    ended = [(each.start_samples, each.end_samples) for each in session.run.of(UtteranceEnded)]
    assert [(final.start_samples, final.end_samples) for final in finals.values()] == ended
    for timed in session.words:
        final = finals[timed.utterance]
        times = [at for word in timed.words for at in (word.start_ms, word.end_ms)]
        assert times == sorted(times)
        assert samples_to_ms(final.start_samples) <= times[0] < times[-1] <= samples_to_ms(final.end_samples)
        said = [word.text for part in final.parts for word in await _of_a_recording(part, final.language)]
        assert [word.text for word in timed.words] == said
        labelled = session.labels.on_words(timed).words
        assert [(word.text, word.start_ms) for word in labelled] == [(word.text, word.start_ms) for word in timed.words]
    passages = [Passage(finals[timed.utterance].text, timed.words) for timed in session.words]
    assert len(passages) == sum(bool(final.text) for final in finals.values())
    cues = cue_segmentation.cues(passages, CueConfig(), session.clock_ms)
    times = [at for cue in cues for at in (cue.start_ms, cue.end_ms)]
    assert times == sorted(times)
    assert all(cue.start_ms < cue.end_ms <= session.clock_ms for cue in cues)
