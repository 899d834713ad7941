"""What became of the audio of a live session: sums that are exact, whatever happens in it."""

import asyncio
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE, samples_to_ms
from asr_server.core.errors import TranscriptionFailed
from asr_server.core.transcript import UnheardReason
from asr_server.engine.protocol import Finish
from asr_server.features.live_coverage import sums
from asr_server.features.live_coverage.sums import CoverageSums, SessionStatsMessage
from asr_server.live.conftest import Scripted, make, opened
from asr_server.live.conftest import speech as speech_bytes
from asr_server.live.machine.conftest import Run, config, result_for, silence, speech
from asr_server.live.machine.events import (
    Audio,
    Close,
    Configure,
    Detection,
    Final,
    Flush,
    Interrupted,
    Reset,
    Transcribe,
    TurnConfig,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.options import PartRequest

__all__ = ["make", "speech_bytes"]

_LIMITS = {"max_utterance_samples": 4 * SAMPLE_RATE, "max_pause_samples": 12_000, "margin_samples": 3_200}


class Heard:
    """A machine with the part; `now` is what the part would tell."""

    def __init__(self, **how):
        self.messages = []
        self.part = CoverageSums(self)
        self.run = Run(LiveMachine(config(on_frame=self.part.on_frame, **_LIMITS, **how)))

    def send(self, message):
        self.messages.append(message)

    def feed(self, event):
        before = len(self.run.actions)
        self.run.feed(event)
        self.told(self.run.actions[before:], event)

    def told(self, actions, event=None):
        message = self.part.on_processed(actions, event, self.run.session, counted=False)
        self.messages += [message] if message else []

    @property
    def now(self):
        (message,) = self.part.on_connect(self.run.session, is_resumed=True)
        return message.wire()


def pulses(ms):
    """As loud as speech, and no speech for the detector of these tests."""
    return np.resize(np.array([12_000, 0, 0], np.int16), ms * 16)


def _events(rng):
    parts = []
    for _ in range(rng.randrange(1, 7)):
        parts.append(silence(rng.choice([40, 200, 900, 3_100])))
        parts.append(speech([rng.randrange(10) for _ in range(rng.randrange(1, 8))], word_ms=rng.choice([160, 250])))
    pcm = np.concatenate([*parts, silence(700)]).astype("<i2").tobytes()
    at = 0
    while at < len(pcm):
        size = rng.choice([2, 501, 1_023, 4_096, 30_001])
        yield Audio(pcm[at : at + size])
        at += size
        if rng.random() < 0.15:
            rules = TurnConfig(detection=rng.choice(list(Detection)), min_silence_ms=rng.choice([500, 1_500]))
            rate = rng.choice([None, None, 8_000, 44_100])
            yield rng.choice([Flush(), Flush(), Reset(), Reset(), Interrupted(), Configure(rules, rate)])
    yield Close()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_the_sums_are_those_of_the_audio_received_to_the_millisecond(seed):
    """After every event, with answers that are late or fail; at the end nothing is pending, and words are those of the
    finals."""

    async def fuzz():
        heard = Heard()
        heard.run.rng, heard.run.delay, heard.run.failures = random.Random(seed), 0.6, 0.3
        machine, last = heard.run.session, {}
        for event in _events(random.Random(seed)):
            heard.feed(event)
            now = {name: round(1000 * value) for name, value in heard.now.items() if isinstance(value, float)}
            received = now.pop("received")
            assert received == samples_to_ms(machine.account.received) == sum(now.values())
            assert min(now.values()) >= 0
            assert now["unheard"] == round(1000 * sum(heard.now["reasons"].values()))
            pending = now.pop("pending")
            # Rounding moves an edge between two kinds by a millisecond, and nothing is counted twice or taken back.
            assert all(now[name] >= last.get(name, 0) - 1 for name in now)
            last = now
        while heard.run.pending:
            before = len(heard.run.actions)
            heard.run.answer()
            heard.told(heard.run.actions[before:])
        heard.part.close()
        parts = [part for final in heard.run.of(Final) for part in final.parts]
        counted = heard.part._message(machine).samples
        lengths = [(part.end_samples - part.start_samples, part.cut_short, bool(part.text)) for part in parts]
        assert counted["words"] == sum(size for size, cut_short, has_text in lengths if has_text and not cut_short)
        assert counted[UnheardReason.FAILED] == sum(size for size, cut_short, _ in lengths if cut_short)
        assert counted["discarded"] >= machine.account.discarded
        assert (heard.now["pending"], pending >= 0) == (0, True)

    asyncio.run(fuzz())


async def test_a_pause_is_silence_or_as_loud_as_speech():
    """A pause is judged second by second, by the rules of recordings."""
    heard = Heard()
    for pcm in (speech([1, 2, 3, 4]), silence(3_000), pulses(4_096), silence(2_000)):
        heard.feed(Audio(pcm.tobytes()))
    heard.feed(Flush())
    now = heard.now
    assert now["reasons"] == {"detector": now["unheard"]}
    assert abs(now["unheard"] - 4.096) < 1.1
    assert now["silence"] > 2.5
    assert now["pending"] < 0.4  # what may be the beginning of the next utterance
    heard.part.close()


async def test_an_utterance_without_words_is_sound_or_silence():
    """The model was given it: nothing of it is unheard."""
    heard = Heard(rules=TurnConfig(detection=Detection.MANUAL))
    heard.run.delay = 2.0
    for event in (Audio(speech([1] * 7).tobytes()), Flush()):
        heard.feed(event)
    while heard.run.pending:
        actions = heard.run.session.receive(result_for(heard.run.pending.pop(0).ticket, ()))
        heard.run.pending += [action for action in actions if isinstance(action, Transcribe)]
        heard.told(actions)
    now = heard.now
    assert (now["words"], now["unheard"]) == (0, 0)
    assert now["silence"] + now["sound"] == pytest.approx(now["received"])
    heard.part.close()


async def test_levels_are_kept_for_what_is_not_settled_alone():
    """Neither many utterances nor a long silence is kept."""
    heard = Heard()
    sizes = []
    for _ in range(20):
        for pcm in (speech([1, 2, 3]), silence(20_000)):
            heard.feed(Audio(pcm.tobytes()))
            heard.run.actions.clear()
        sizes.append(len(heard.part._levels._loudness))
    assert heard.now["silence"] > 350
    for _ in range(20):
        heard.feed(Audio(silence(20_000).tobytes()))
        sizes.append(len(heard.part._levels._loudness))
    assert max(sizes) < 1_000  # of 26,000 frames
    heard.part.close()


def _asked(*parts):
    return {"parts": (*parts, PartRequest(CoverageSums))}


async def _until(connection, done):
    """The first sums for which `done` is true."""
    async with asyncio.timeout(30):
        told = (outgoing.message.wire() async for outgoing in connection.messages() if _is_stats(outgoing.message))
        return await anext(stats async for stats in told if done(stats))


def _is_stats(message):
    return isinstance(message, SessionStatsMessage)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("words", None),
        (("words", Finish.LOOP), "loop"),
        (("words", Finish.BUDGET), "budget"),
        (TranscriptionFailed("broken"), "failed"),
    ],
)
async def test_an_utterance_is_words_or_unheard_with_the_reason(make, speech_bytes, answer, reason):
    """Its last change is told although no other event follows it."""
    connection = await opened(make(Scripted(lambda item: answer)), **_asked())
    await connection.send(Audio(speech_bytes))
    await connection.send(Flush())
    kind = "unheard" if reason else "words"
    told = await _until(connection, lambda stats: stats[kind] > 1)
    assert told["reasons"] == ({reason: told["unheard"]} if reason else {})
    connection.session.end()


async def test_sums_come_no_more_often_than_told(make, speech_bytes, monkeypatch):
    """All events of a session together give one message before the time is over."""
    monkeypatch.setattr(sums, "_EVERY_S", 3_600)
    connection = await opened(make(Scripted()), **_asked())
    for at in range(0, len(speech_bytes), 3_200):
        await connection.send(Audio(speech_bytes[at : at + 3_200]))
    await connection.send(Flush())
    seen = []
    async for outgoing in connection.messages():
        seen.append(outgoing.message)
        if isinstance(outgoing.message, Final):
            break
    assert len(list(filter(_is_stats, seen))) == 1
    await connection.session.finish()
    assert connection.session.parts[0]._sent.wire()["pending"] == 0  # the end is told at once
    connection.session.end()
