"""Invariants of a session under random speech, chunking, late and failing results, and orders of events."""

import functools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.live.machine.conftest import Run, begun, pcm, play, recognize, result_for, silence, speech
from asr_server.live.machine.events import (
    Audio,
    Checkpoint,
    Close,
    Configure,
    Ending,
    Final,
    Flush,
    GetCheckpoint,
    Interrupted,
    Partial,
    Reset,
    TurnConfig,
    UtteranceEnded,
)
from asr_server.live.machine.session import LiveMachine
from asr_server.live.machine.utterance import LiveMachineConfig

_SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def _talk(rng, sentences=6):
    parts = []
    for _ in range(sentences):
        parts.append(silence(rng.choice([40, 200, 560, 900])))
        parts.append(speech([rng.randrange(10) for _ in range(rng.randrange(1, 8))], word_ms=rng.choice([160, 250])))
    return np.concatenate([*parts, silence(700)])


_TALK = _talk(random.Random(1))
_CUT_EARLY = {"max_utterance_samples": 2 * SAMPLE_RATE}


@functools.cache
def _finals(**changes):
    return play(_TALK, **changes).finals


@_SETTINGS
@given(st.integers(0, 2**32), st.sampled_from([16_000, 8_000, 44_100]))
def test_chunking_never_matters(seed, rate):
    """Re-chunkings of one recording give identical finals, also odd splits, single bytes, and through a resampler."""
    whole = _finals(input_rate_hz=rate)
    assert len(whole) > 3 or rate != 16_000
    assert play(_TALK, rng=random.Random(seed), input_rate_hz=rate).finals == whole


@_SETTINGS
@given(st.integers(0, 2**32))
def test_every_final_is_the_offline_answer_on_the_same_audio(seed):
    pcm = _talk(random.Random(seed))
    run = play(pcm, rng=random.Random(seed))
    assert any(final.text for final in run.of(Final))
    for final in run.of(Final):
        audio = pcm[final.start_samples : final.end_samples] / 32_768
        assert final.text == result_for(0, recognize(audio)).text


@st.composite
def _events(draw):
    rng = random.Random(draw(st.integers(0, 2**32)))
    pcm = _talk(rng, sentences=draw(st.integers(1, 8))).astype("<i2").tobytes()
    events, at = [], 0
    while at < len(pcm):
        size = rng.choice([1, 3, 500, 1_023, 4_096, 30_001])
        events.append(Audio(pcm[at : at + size]))
        at += size
        if rng.random() < 0.05:
            rules = TurnConfig(manual=rng.random() < 0.5, min_silence_ms=rng.choice([500, 1_500]))
            events.append(rng.choice([Flush(), Reset(), Interrupted(), Configure(rules)]))
    return events + ([Close()] if rng.random() < 0.5 else [])


@_SETTINGS
@given(_events(), st.integers(0, 2**32))
def test_whatever_is_late_stale_failing_flushed_or_cut(events, seed):
    """Committed text is a prefix of all that follows, and its language stays. The account adds up after every event.
    Utterances with audio do not overlap. Each utterance that ends has one final, in order, and each flush its own. A
    request has a new ticket, no more audio than an utterance, which lies where it says, and a draft that begins with
    the committed words."""
    heard = []
    limits = {"max_utterance_samples": 4 * SAMPLE_RATE, "max_pause_samples": 12_000, "margin_samples": 3_200}
    machine = LiveMachine(LiveMachineConfig(**limits, on_frame=lambda frame: heard.append(frame.samples)))
    run = Run(machine, random.Random(seed), delay=0.7, failures=0.1, languages=("English", "German"))
    for event in events:
        run.feed(event)
        account = run.session.account
        assert account.received == account.in_utterances + account.in_silence + account.discarded + account.open
        assert account.open <= 9 * SAMPLE_RATE
    end = 0
    for stopped in run.of(UtteranceEnded):
        assert stopped.start_samples <= stopped.end_samples
        if stopped.start_samples < stopped.end_samples:
            assert end <= stopped.start_samples
            end = stopped.end_samples
    in_all = sum(s.end_samples - s.start_samples for s in run.of(UtteranceEnded))
    assert account.in_utterances <= in_all <= account.in_utterances + account.in_silence

    run.finish(close=False)
    known = {}
    for action in run.of(Partial | Final):
        committed, language = known.get(action.utterance, ("", action.language))
        assert action.text.startswith(committed)
        assert action.language == language
        if isinstance(action, Partial) and action.committed:
            assert action.committed.startswith(committed)
            known[action.utterance] = action.committed, action.language
    numbers = [f.utterance for f in run.of(Final)]
    assert numbers == sorted(set(numbers))
    for final in run.of(Final):
        parts = [at for part in final.parts for at in (part.start_samples, part.end_samples)]
        assert (places := [final.start_samples, *parts, final.end_samples]) == sorted(places)
    assert [s.utterance for s in run.of(UtteranceEnded)] == numbers
    flushed = sum(isinstance(event, Flush) for event in events)
    assert sum(f.ending is Ending.FLUSH for f in run.of(Final)) == flushed

    whole = np.concatenate(heard)
    assert len(whole) == run.session.clock_samples
    assert len({request.ticket for request in run.requests}) == len(run.requests)
    for request in run.requests:
        assert np.array_equal(whole[request.start_samples : request.end_samples], request.audio)
        assert len(request.audio) <= 5 * SAMPLE_RATE
        assert request.draft[: len(request.prefix)] == request.prefix


@_SETTINGS
@given(st.floats(0, 1))
def test_a_fresh_session_goes_on_from_where_one_is_settled(share):
    """Asked anywhere, in silence, speech or a pause, before or after a forced cut: the rest gives the same finals."""
    whole = _finals(**_CUT_EARLY)
    assert len(whole) > 4
    run = begun(**_CUT_EARLY)
    run.feed(pcm(_TALK[: round(share * len(_TALK))]))
    run.feed(GetCheckpoint())
    (settled,) = run.of(Checkpoint)
    assert [f[0] for f in run.finals] == list(range(1, settled.utterance + 1))
    rest = play(_TALK[settled.end_samples :], **_CUT_EARLY).finals
    shift = settled.end_samples
    assert whole == [
        *run.finals,
        *((n + settled.utterance, text, start + shift, end + shift, ending) for n, text, start, end, ending in rest),
    ]


def test_what_has_no_final_yet_is_not_settled():
    """While answers are outstanding, the place stays before the first utterance without a final."""
    run = begun()
    run.delay = 1.0
    run.feed(pcm(speech([1, 2, 3]), silence(900), speech([4, 5]), silence(900)))
    run.feed(GetCheckpoint())
    run.finish(close=False)
    run.feed(GetCheckpoint())
    before, after = run.of(Checkpoint)
    assert (before.end_samples, before.utterance) == (0, 0)
    assert after.end_samples > run.finals[-1][3]
    assert after.utterance == 2
