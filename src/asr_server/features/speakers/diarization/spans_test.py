"""Turns, made from pieces."""

import numpy as np
import pytest

from asr_server.core.audio import SAMPLE_RATE
from asr_server.features.speakers.diarization import spans
from asr_server.features.speakers.diarization.spans import VoiceSpan
from asr_server.features.speakers.diarization.windows import Overlap, Piece

CENTRES = np.eye(2)


@pytest.mark.parametrize(
    ("parts", "turns"),
    [
        ([(0, 0, 1), (0, 1.4, 2)], [(0, 0, 2000)]),
        ([(0, 0, 1), (0, 1.6, 2)], [(0, 0, 1000), (0, 1600, 2000)]),
        # Another speaks in the pause, or on into the pause.
        ([(0, 0, 1), (1, 1.1, 1.2), (0, 1.3, 2)], [(0, 0, 1000), (1, 1100, 1200), (0, 1300, 2000)]),
        ([(1, 0, 1.2), (0, 0.5, 1), (0, 1.3, 2)], [(1, 0, 1200), (0, 500, 1000), (0, 1300, 2000)]),
        ([(0, 0, 1), (1, 0.9, 2), (0, 1, 1.5)], [(0, 0, 1500), (1, 900, 2000)]),  # no pause
    ],
)
def test_a_pause_of_half_a_second_in_which_nobody_else_speaks_does_not_end_a_turn(parts, turns):
    """A turn is written as (speaker, start, end) in milliseconds."""
    spoken = [VoiceSpan(round(begin * SAMPLE_RATE), round(end * SAMPLE_RATE), who) for who, begin, end in parts]
    assert [(turn.speaker, turn.start_ms, turn.end_ms) for turn in spans.turns(spoken)] == turns


def _piece(begin_s, end_s, person, voice=None):
    sound_s = max(end_s - begin_s, 1.0) if voice is not None else end_s - begin_s
    return Piece(round(begin_s * SAMPLE_RATE), round(end_s * SAMPLE_RATE), (0, person), voice, sound_s)


def test_a_voice_decides_for_its_piece_whatever_the_window_takes_it_for():
    """Windows often take two people for one; a piece too short for a voice is that of whoever speaks nearest to it."""
    pieces = [
        _piece(0.0, 4.0, 0, np.array([1.0, 0.1])),
        _piece(5.0, 5.6, 0, np.array([0.1, 1.0])),
        _piece(5.7, 5.9, 0),
        _piece(6.5, 6.8, 0),
        _piece(7.0, 9.0, 1, np.array([1.0, 0.0])),
    ]
    assert [span.speaker for span in spans.attributed(pieces, [], CENTRES)] == [0, 1, 1, 0, 0]


def test_who_speaks_at_once_is_known_by_the_nearest_speech_of_each():
    """The nearest speech is of the same person in that window; somebody who never speaks alone there is nobody."""
    pieces = [_piece(0, 2, 0, CENTRES[0]), _piece(4, 6, 0, CENTRES[1]), _piece(6, 7, 1, CENTRES[0])]
    overlap = Overlap(round(5.9 * SAMPLE_RATE), round(6.1 * SAMPLE_RATE), dict.fromkeys(((0, 0), (0, 1), (0, 2)), ()))
    found = spans.attributed(pieces, [overlap], CENTRES)
    assert [span.speaker for span in found if span.begin == overlap.begin] == [1, 0]
