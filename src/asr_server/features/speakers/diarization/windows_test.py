"""The results of a window of sound: how much of it each voice is heard in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization.conftest import CONVERSATIONS, NumberedVoices
from asr_server.features.speakers.diarization.models import WINDOW_SAMPLES
from asr_server.features.speakers.diarization.windows import SpeakerModels, analyse

FRAMES = 1000  # of 10 ms


def _analysed(*speech):
    """The pieces of a window in which persons speak as told, each (person, start, end) in seconds.

    The sound counts its samples, and the voice of a piece is the first and the last that it was heard in, in seconds.
    """
    active = np.zeros((FRAMES, 3), bool)
    for person, start_s, end_s in speech:
        active[round(start_s * 100) : round(end_s * 100), person] = True
    models = SpeakerModels(lambda _: active, lambda sound: np.array([sound[0], sound[-1] + 1]) / SAMPLE_RATE)
    pieces, _ = analyse(models, np.arange(WINDOW_SAMPLES, dtype=np.float64), 0, 0, (0, WINDOW_SAMPLES))
    return [
        (piece.begin / SAMPLE_RATE, piece.end / SAMPLE_RATE, None if piece.voice is None else tuple(piece.voice))
        for piece in pieces
    ]


@pytest.mark.parametrize(
    ("speech", "first"),
    [
        pytest.param([(0, 1, 1.6)], (1, 1.6, (1, 1.6)), id="alone"),
        pytest.param([(0, 1, 1.4)], (1, 1.4, None), id="too short for a voice"),
        pytest.param([(0, 1, 1.4), (0, 1.8, 2.2)], (1, 1.4, (1, 2.2)), id="with what follows a short pause"),
        pytest.param([(0, 1, 1.4), (0, 2, 2.4)], (1, 1.4, None), id="a long pause"),
        pytest.param([(0, 1, 1.4), (1, 1.5, 1.6), (0, 1.7, 2.2)], (1, 1.4, None), id="another in the pause"),
        pytest.param([(0, 1, 2), (0, 2.3, 3), (0, 3.2, 9)], (1, 2, (1, 4)), id="three seconds are enough"),
    ],
)
def test_a_short_piece_is_heard_with_what_the_same_person_says_around_it(speech, first):
    found = _analysed(*speech)[0]
    assert found[:2] == pytest.approx(first[:2], abs=0.01)
    assert found[2] == (first[2] if first[2] is None else pytest.approx(first[2], abs=0.02))


def test_long_speech_is_cut_into_pieces_of_about_two_seconds():
    """The pieces are heard with half a second around them on both sides, where that is the same person's."""
    found = _analysed((0, 0, 10))
    assert [round(end - begin, 2) for begin, end, _ in found] == [2.0] * 5
    assert [round(voice[1] - voice[0], 2) for _, _, voice in found] == [3.0] * 5


@settings(max_examples=50)
@given(CONVERSATIONS, st.integers(8_000, 40_000))
def test_windows_have_neither_gaps_nor_doubles(sound, step):
    """Every moment is in one piece or one overlap at most, and whoever speaks is heard, except a frame at the ends
    and a few samples between windows, whose frames do not begin together."""
    found, done = np.zeros(len(sound), int), 0
    for number, end in enumerate(range(step, len(sound) + step, step)):
        end = min(end, len(sound))
        start = max(0, end - WINDOW_SAMPLES)
        pieces, overlaps = analyse(NumberedVoices().models, sound[start:end], number, start, (done, end))
        for part in (*pieces, *overlaps):
            assert done <= part.begin < part.end <= end
            found[part.begin : part.end] += 1
        done = end
    assert found.max() <= 1
    changes, windows = np.count_nonzero(np.diff(sound > 0)) + 2, number + 1
    assert np.count_nonzero((found > 0) != (sound > 0)) <= changes * 272 + windows * 32
