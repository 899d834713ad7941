"""Recordings as a whole. Who speaks is in the samples; with real models and people see models_test.py."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization.conftest import CONVERSATIONS, NumberedVoices, numbered
from asr_server.features.speakers.diarization.recording import RecordingDiarizer
from asr_server.features.speakers.diarization.turns import SpeakerCount


def diarized(sound, block_samples=None, count=None):
    diarizer = RecordingDiarizer(NumberedVoices().models)
    step = block_samples or max(1, len(sound))
    for begin in range(0, len(sound), step):
        diarizer.push(sound[begin : begin + step])
    return diarizer.finish(count or SpeakerCount())


@settings(max_examples=50)
@given(CONVERSATIONS, st.sampled_from([1600, 7_777, 32_000, 160_000, 200_001]))
def test_how_it_is_fed_in_changes_nothing(sound, block_samples):
    whole, parts = diarized(sound), diarized(sound, block_samples)
    assert parts.turns == whole.turns
    assert np.array_equal(parts.voice_prints, whole.voice_prints)


@pytest.mark.parametrize("seconds", [0.7, 9.99, 10.0, 10.01, 12.5, 12.51, 33.3])
def test_speech_from_the_first_sample_to_the_last(seconds):
    """The speech is one turn of that length, but for a part of a frame, wherever the windows end."""
    (turn,) = diarized(numbered((1, seconds)), 8_000).turns
    assert (turn.speaker, turn.start_ms, turn.end_ms) == (0, 0, pytest.approx(1000 * seconds, abs=17))


def test_speech_too_short_for_a_voice_is_one_turn_of_somebody():
    found = diarized(numbered((0, 1), (2, 0.3), (0, 3)))
    assert [turn.speaker for turn in found.turns] == [0]
    assert found.voice_prints == ()


def test_people_are_numbered_in_the_order_in_which_they_begin():
    """Each has a voice of length 1, also where they speak at once."""
    found = diarized(numbered((3, 4), (0, 1), (1, 5), (13, 1), (3, 6), (2, 5)))
    assert [turn.speaker for turn in found.turns] == [0, 1, 0, 2]
    times_ms = [ms for turn in found.turns[:3] for ms in (turn.start_ms, turn.end_ms)]
    assert times_ms == pytest.approx([0, 4_000, 5_000, 11_000, 10_000, 17_000], abs=20)
    assert np.linalg.norm(found.voice_prints, axis=1) == pytest.approx([1, 1, 1])
    assert [int(voice[:10].argmax()) for voice in found.voice_prints] == [3, 1, 2]


@pytest.mark.parametrize(("one", "other"), [(2, 3), (3, 2), (7, 1)])
def test_a_voice_print_is_that_of_the_speaker_of_its_number(one, other):
    """The voice that is found first, in a moment too short for a turn, may be that of the second speaker."""
    found = diarized(numbered((other, 0.3), (one, 2), (other, 2), (one, 1)))
    assert [turn.speaker for turn in found.turns] == [0, 1, 0]
    assert [int(voice[:10].argmax()) for voice in found.voice_prints] == [one, other]


def test_the_memory_of_a_recording_is_that_of_its_voices():
    """One window of the sound and a step are kept, and a voice for each 2 s."""
    voices = NumberedVoices()
    diarizer, sizes = RecordingDiarizer(voices.models), []
    for _ in range(60):
        diarizer.push(numbered((1, 2)))
        sizes.append(len(pickle.dumps(diarizer)))
    assert max(sizes) < 4 * 13 * SAMPLE_RATE + 60 * 2 * 1_000
    assert voices.windows <= 120 / 2.5
