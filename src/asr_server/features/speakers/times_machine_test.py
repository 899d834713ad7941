"""The times of a live session against a simple model, in any order of speech, pauses, actions, delays and turns.

Promised are: utterances, their parts, their words and the cues made of them lie one behind the other, inside the audio
that has come; the end of the audio that a text is made from never decreases; words are those that a recording with the
same speech has; and the labels of speakers cover the committed text, and behind the horizon stay as they are.
"""

import asyncio
import random
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
    UtteranceStarted,
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


class Times(RuleBasedStateMachine):
    """A session, whose engine answers when the machine lets it, and what tells its speakers apart."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.heard = []
        self.session = Run(
            LiveMachine(LiveMachineConfig(on_frame=lambda frame: self.heard.append(frame.samples), **_LIMITS)),
            random.Random(0),
            delay=1.0,
        )
        self.words, self.labels = [], SpeakerLabels()
        self.word_times = FinalWordTimes(lambda model: None, WordTimes.ESTIMATED, self.words.append)
        self.shown = {}  # of each open utterance: the end of the audio of its last text, and its start
        self.ended, self.finals = [], []
        self.turns_ms = self.horizon_ms = 0
        self.committed = {}  # of each utterance: its text
        self.settled = {}  # of each utterance: the speakers of its first characters, which do not change

    def feed(self, event=None):
        """An event, or the next answer of the engine; and all that follows from it."""
        before = len(self.session.actions)
        if event is not None:
            self.session.feed(event)
        elif self.session.pending:
            self.session.answer()
        for action in self.session.actions[before:]:
            self.on_action(action)
        self.loop.run_until_complete(self.word_times.wait())
        while self.words:
            self.on_words(self.words.pop(0))

    @property
    def clock(self):
        return self.session.session.clock_samples

    def on_action(self, action):
        match action:
            case Transcribe():
                self.word_times.on_request(action)
                assert np.array_equal(
                    np.concatenate(self.heard)[action.start_samples : action.end_samples], action.audio
                )
            case UtteranceStarted(utterance=number, start_samples=start):
                assert (
                    max(
                        (ended.end_samples for ended in self.ended if ended.start_samples < ended.end_samples),
                        default=0,
                    )
                    <= start
                )
                self.shown[number] = (start, start)
            case UtteranceEnded(start_samples=start, end_samples=end):
                assert start <= end <= self.clock
                self.ended.append(action)
            case Partial(utterance=number, start_samples=start, end_samples=end):
                assert self.shown[number][1] == start <= self.shown[number][0] <= end <= self.clock
                self.shown[number] = (end, start)
                self.on_labels(self.labels.on_text(action), action.committed)
            case Final():
                self.on_final(action)
            case ResetDone(utterance=int(number)):
                self.labels.discard(number)
                self.settled.pop(number, None)

    def on_final(self, final):
        ended = next(each for each in self.ended if each.utterance == final.utterance)
        assert (ended.start_samples, ended.end_samples) == (final.start_samples, final.end_samples)
        places = [at for part in final.parts for at in (part.start_samples, part.end_samples)]
        assert [final.start_samples, *places, final.end_samples] == sorted(
            [final.start_samples, *places, final.end_samples]
        )
        self.finals.append((final, None))
        self.on_labels(self.labels.on_text(final), final.text)

        async def send():
            self.word_times.on_final(final)

        self.loop.run_until_complete(send())

    def on_words(self, timed):
        final = next(final for final, _ in self.finals if final.utterance == timed.utterance)
        times = [at for word in timed.words for at in (word.start_ms, word.end_ms)]
        assert times == sorted(times)
        assert samples_to_ms(final.start_samples) <= times[0] < times[-1] <= samples_to_ms(final.end_samples)
        said = [word.text for part in final.parts for word in self.of_a_recording(part, final.language)]
        assert [word.text for word in timed.words] == said
        self.finals = [(each, timed.words if each is final else words) for each, words in self.finals]
        labelled = self.labels.on_words(timed)
        assert [(word.text, word.start_ms, word.end_ms) for word in labelled.words] == [
            (word.text, word.start_ms, word.end_ms) for word in timed.words
        ]

    def of_a_recording(self, part, language):
        """The words of a span of the same speech in a recording."""
        audio = np.zeros(part.end_samples - part.start_samples, np.float32)
        span = SpeechSpan(part.start_samples, part.end_samples, audio, 1.0)
        found = time_words(None, span, part.text, language, WordTimes.ESTIMATED, priority=Priority.BULK)
        return self.loop.run_until_complete(found)

    def on_labels(self, speakers, committed):
        """What the client gets of an utterance."""
        assert "".join(run.text for run in speakers.runs) == committed
        self.committed[speakers.utterance] = committed
        assert all(run.speaker != behind.speaker for run, behind in pairwise(speakers.runs))
        shown = [run.speaker for run in speakers.runs for _ in run.text]
        fixed = self.settled.get(speakers.utterance, [])
        assert shown[: len(fixed)] == fixed
        if speakers.settled:
            self.settled[speakers.utterance] = shown

    @rule(words=st.lists(st.integers(0, 9), min_size=1, max_size=12), cut=st.sampled_from([640, 4_095, 30_001]))
    def speak(self, words, cut):
        """Words with short gaps, in pieces cut anywhere."""
        self.send(speech(words), cut)

    @rule(ms=st.sampled_from([40, 200, 900, 1_500]), cut=st.sampled_from([640, 30_001]))
    def pause(self, ms, cut):
        """Within an utterance, between two of its parts, or behind it."""
        self.send(silence(ms), cut)

    def send(self, pcm, cut):
        data = pcm.astype("<i2").tobytes()
        for at in range(0, len(data), cut):
            self.feed(Audio(data[at : at + cut]))

    @rule(event=st.sampled_from([Flush(), Reset(), Interrupted()]))
    def act(self, event):
        """In the middle of anything."""
        self.feed(event)

    @rule(manual=st.booleans(), silence_ms=st.sampled_from([300, 500, 1_200]))
    def configure(self, manual, silence_ms):
        """Change who ends an utterance."""
        self.feed(Configure(TurnConfig(manual=manual, min_silence_ms=silence_ms)))

    @rule(count=st.integers(1, 8))
    def answer(self, count):
        """The engine has come as far."""
        for _ in range(count):
            self.feed()

    @rule(lengths=st.lists(st.integers(50, 2_000), max_size=3), who=st.integers(0, 2), kept_ms=st.integers(0, 2_000))
    def turns(self, lengths, who, kept_ms):
        """Who speaks becomes known, up to the clock; what lies behind the horizon stays as it is."""
        ends_ms = list(accumulate(lengths, initial=self.horizon_ms))
        clock_ms = samples_to_ms(self.clock)
        found = [
            Turn((who + number) % 3, start_ms, min(end_ms, clock_ms))
            for number, (start_ms, end_ms) in enumerate(pairwise(ends_ms))
            if start_ms < clock_ms
        ]
        self.horizon_ms = max(self.horizon_ms, clock_ms - kept_ms)
        for changed in self.labels.on_turns(found, self.horizon_ms):
            self.on_labels(changed, self.committed[changed.utterance])

    @invariant()
    def audio_has_one_place(self):
        """Every sample is in an utterance, in silence, discarded or open."""
        account = self.session.session.account
        assert account.received == account.in_utterances + account.in_silence + account.discarded + account.open

    def teardown(self):
        """All is answered; the cues of the whole lie one behind the other inside the audio."""
        while self.session.pending:
            self.feed()
        self.feed(Flush())
        while self.session.pending:
            self.feed()
        assert [final.utterance for final, _ in self.finals] == [ended.utterance for ended in self.ended]
        passages = [Passage(final.text, words) for final, words in self.finals if words]
        assert len(passages) == sum(bool(final.text) for final, _ in self.finals)
        cues = cue_segmentation.cues(passages, CueConfig(), samples_to_ms(self.clock)) if passages else []
        times = [at for cue in cues for at in (cue.start_ms, cue.end_ms)]
        assert times == sorted(times)
        assert all(cue.start_ms < cue.end_ms <= samples_to_ms(self.clock) for cue in cues)
        self.word_times.close()
        self.loop.close()


TestTimes = pytest.mark.slow("tries many orders of speech and labels")(Times.TestCase)
TestTimes.settings = settings(
    max_examples=150,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
