"""Live sessions. Who speaks is in the samples; with real models and people see models_test.py."""

import pickle
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization import live
from asr_server.features.speakers.diarization.conftest import CONVERSATIONS, NumberedVoices, numbered
from asr_server.features.speakers.diarization.live import HORIZON_S, VOICE_PRINT_S, LiveDiarizer


def blocks(sound, block_samples=4_000):
    return [sound[begin : begin + block_samples] for begin in range(0, len(sound), block_samples)]


@pytest.mark.slow("hears minutes of speech")
@settings(max_examples=50)
@given(CONVERSATIONS, st.sampled_from([1_600, 4_000, 17_000, 32_000]))
def test_labels_behind_the_horizon_never_change(sound, block_samples):
    """No turn begins before what was settled already. The horizon only moves on, and is as late as promised. A voice is
    reported at most once for each step, also where pieces go to another speaker and back."""
    diarizer = LiveDiarizer(NumberedVoices().models)
    heard_ms = settled_ms = 0
    reports, prints = Counter(), {}
    for block in blocks(sound, block_samples):
        found = diarizer.push(block)
        heard_ms += 1000 * len(block) / SAMPLE_RATE
        assert all(turn.start_ms >= settled_ms for turn in found)
        assert all(turn.end_ms <= heard_ms for turn in found)
        assert settled_ms <= diarizer.settled_ms <= heard_ms
        assert diarizer.settled_ms >= heard_ms - 1000 * (HORIZON_S + 1.6)
        settled_ms = diarizer.settled_ms
        if (voices := diarizer.take_voice_prints()) is not None:
            changed = [speaker for speaker, voice in voices.items() if voice is not prints.get(speaker)]
            reports = Counter({speaker: reports[speaker] for speaker in voices}) + Counter(changed)
            assert max(reports.values(), default=0) <= len(VOICE_PRINT_S)
            prints = voices


def told(sound, diarizer=None):
    """Return the final turns, as (speaker, start, end) in seconds."""
    diarizer, turns = diarizer or LiveDiarizer(NumberedVoices().models), []
    for block in blocks(sound):
        settled_ms = diarizer.settled_ms
        if found := diarizer.push(block):
            turns = [turn for turn in turns if turn.end_ms <= settled_ms] + list(found)
    return [(turn.speaker, round(turn.start_ms / 1000, 1), round(turn.end_ms / 1000, 1)) for turn in turns]


def test_who_speaks_is_known_within_two_seconds():
    """Windows are a second apart, and unsure of their last half second."""
    for seconds in (1.5, 1.75, 2.25, 2.5):
        assert told(numbered((1, 5), (2, seconds)))[-1] == (1, 5.0, 6.0 if seconds < 2.5 else 7.0)


def test_what_has_not_changed_is_not_told_again():
    diarizer = LiveDiarizer(NumberedVoices().models)
    found = [diarizer.push(block) for block in blocks(numbered((1, 5), (2, 4), (0, 10)))]
    reports = [turns for turns in found if turns]
    assert len(reports) > 3
    assert all(one != two for one, two in pairwise(reports))


def test_people_keep_their_numbers():
    parts = [(1, 5), (2, 5), (3, 30), (2, 20), (0, 40), (1, 5), (2, 5), (0, 2)]
    assert [speaker for speaker, *_ in told(numbered(*parts))][-2:] == [0, 1]


def test_a_short_sound_is_nobody_new():
    assert {speaker for speaker, *_ in told(numbered((1, 6), (0, 0.6), (2, 0.8), (0, 3), (1, 3)))} == {0}


def test_people_who_speak_at_once_both_speak():
    """If two people speak in the whole new part of a window, its earlier part shows who they are."""
    assert told(numbered((1, 4.2), (12, 0.6), (2, 4.2), (0, 2))) == [(0, 0.0, 4.8), (1, 4.2, 9.0)]
    found = told(numbered((1, 4.2), (2, 3), (12, 3), (1, 3), (0, 2)))
    assert found == [(0, 0.0, 4.2), (1, 4.2, 10.2), (0, 7.2, 13.2)]


@pytest.mark.slow("hears minutes of speech")
def test_the_memory_of_a_session_is_bounded(monkeypatch):
    """However long it is, and whoever spoke little is not forgotten for those who spoke much."""
    monkeypatch.setattr(live, "MOST_PIECES", 30)
    diarizer = LiveDiarizer(NumberedVoices().models)
    told(numbered((2, 4), (1, 4)), diarizer)
    sizes = []
    for _ in range(8):
        told(numbered((1, 20), (3, 1.5), (0, 1)), diarizer)
        sizes.append(len(pickle.dumps(diarizer)))
    assert max(sizes[4:]) <= 1.02 * max(sizes[:4])
    assert told(numbered((2, 2.5)), diarizer)[-1][0] == 0


def test_the_number_of_people_is_bounded(monkeypatch):
    monkeypatch.setattr(live, "MAX_SPEAKERS", 2)
    found = told(numbered((1, 5), (2, 5), (3, 5), (4, 5), (0, 3)))
    assert {speaker for speaker, *_ in found} == {0, 1}
    assert found[-1][2] == pytest.approx(20, abs=0.1)


def voices_told(*parts):
    """Return each report, with the seconds of audio that it came after."""
    diarizer, reports = LiveDiarizer(NumberedVoices().models), []
    for number, block in enumerate(blocks(numbered(*parts)), start=1):
        diarizer.push(block)
        if (prints := diarizer.take_voice_prints()) is not None:
            reports.append((number / 4, prints))
    return reports


def test_a_voice_is_told_after_three_six_and_twelve_seconds_of_its_speech():
    """The voice is not told before, at most 2 s later, and not again, however long the speech goes on."""
    reports = voices_told((1, 30))
    assert [set(prints) for _, prints in reports] == [{0}] * 3
    for (at_s, _), enough_s in zip(reports, VOICE_PRINT_S, strict=True):
        assert enough_s <= at_s <= enough_s + 2
    assert voices_told((1, 2.5), (0, 30)) == []


def test_a_voice_that_is_told_is_that_of_its_speaker():
    """The voice is of length 1. The voices of others come with it unchanged."""
    *_, (_, before), (_, after) = voices_told((1, 13), (2, 5), (0, 2))
    assert after[0] is before[0]
    voices = np.array([after[0], after[1]])
    assert np.linalg.norm(voices, axis=1) == pytest.approx(1, abs=1e-6)
    likeness = voices @ np.eye(64)[[1, 2]].T
    assert likeness.argmax(axis=1).tolist() == [0, 1]
    assert likeness.max(axis=1).min() > 0.9


def test_a_speaker_who_was_taken_for_another_is_withdrawn():
    """The voices of two people are one when a third sound is like both. Otherwise the next person with that number
    would have the name of somebody else; nobody else becomes a third."""
    voices = NumberedVoices()
    angles = np.radians([0, 70, 35, 180])
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    embedding = lambda sound: directions[np.bincount(sound[sound >= 1].astype(int)).argmax() - 1]  # noqa: E731
    diarizer = LiveDiarizer(replace(voices.models, embedding=embedding))
    told(numbered((1, 4), (2, 4), (0, 1)), diarizer)
    assert set(diarizer.take_voice_prints()) == {0, 1}
    assert diarizer.take_voice_prints() is None
    told(numbered((3, 2)), diarizer)
    assert set(diarizer.take_voice_prints()) == {0}
    assert told(numbered((4, 4)), diarizer)[-1][0] == 1
