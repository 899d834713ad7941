"""The account of a recording: every millisecond has one kind, and what cannot be told is unheard."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.audio import FRAME_MS, FRAME_SAMPLES, samples_to_ms
from asr_server.core.transcript import CoverageKind, Segment, UnheardReason
from asr_server.recordings.segmenter import SoundLevels

WORDS, SILENCE, SOUND, UNHEARD = CoverageKind
DETECTOR, LOOP, BUDGET = list(UnheardReason)[:3]
SECOND = round(1000 / FRAME_MS)  # in frames


def levels(*channels):
    """Return the levels of channels, each of stretches of (frames, dBFS, speech probability)."""
    found = SoundLevels()
    for stretches in channels:
        first = 0
        for count, loudness, probability in stretches:
            power = np.full(count, 10 ** (loudness / 10), np.float32)
            found.put(first, np.full(count, probability, np.float32), power)
            first += count
    return found


def answer(start_ms, end_ms, text="words", cut_short=None):
    return Segment(start_ms, end_ms, text, "English", (), 0.0, 0.0, cut_short=cut_short)


def kinds(parts):
    return [(part.kind, part.reason) for part in parts]


# Spans in samples, ordered and disjoint or not; sound of all levels.
TEXTS, CUTS = st.sampled_from(["", "x"]), st.sampled_from([None, LOOP, BUDGET])
SPANS = st.lists(st.tuples(st.integers(0, 400_000), st.integers(1, 90_000), TEXTS, CUTS), max_size=12)
LEVELS = st.lists(
    st.tuples(st.integers(1, 100), st.sampled_from([-100.0, -45.0, -20.0]), st.sampled_from([0.0, 0.4, 1.0]))
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1_600, 500_000), SPANS, LEVELS)
def test_every_millisecond_has_one_kind(total, spans, stretches):
    """The parts follow each other from 0 to the duration, the strongest answer counts, and neighbours differ."""
    found = levels([*stretches, (-(-total // FRAME_SAMPLES), -60.0, 0.1)])
    heard = [
        answer(samples_to_ms(start), samples_to_ms(min(start + length, total)), text, cut)
        for start, length, text, cut in spans
        if start < total
    ]
    duration_ms = samples_to_ms(total)
    parts = found.coverage(duration_ms, heard)
    assert [part.start_ms for part in parts] == [0, *(part.end_ms for part in parts[:-1])]
    assert parts[-1].end_ms == duration_ms
    assert all(part.start_ms < part.end_ms for part in parts)
    assert all(one != other for one, other in pairwise(kinds(parts)))
    for part in parts:
        for at in {part.start_ms, part.end_ms - 1}:
            here = [one for one in heard if one.start_ms <= at < one.end_ms]
            if any(one.cut_short for one in here):
                assert part.kind is UNHEARD
                assert part.reason in {one.cut_short for one in here}
            elif here:
                assert (part.kind is WORDS) == any(one.text for one in here)
                assert part.kind is not UNHEARD
            else:
                assert part.kind is not WORDS
        assert (part.reason is None) == (part.kind is not UNHEARD)
        assert (part.confidence is None) == (part.kind is not SILENCE)


@pytest.mark.parametrize("gain_db", [0, -30])
def test_quiet_is_quieter_than_the_speech_of_the_recording(gain_db):
    """The level of the recording does not matter: noise of its room is silence, and sound as loud as speech is not."""
    speech = [(SECOND, level + gain_db, 0.9) for level in (-35, -30, -25, -20)]
    found = levels([*speech, (2 * SECOND, -40 + gain_db, 0.1), (2 * SECOND, -30 + gain_db, 0.1)])
    parts = found.coverage(round(8 * SECOND * FRAME_MS), [answer(0, round(4 * SECOND * FRAME_MS))])
    assert kinds(parts) == [(WORDS, None), (SILENCE, None), (UNHEARD, DETECTOR)]


@pytest.mark.parametrize(("loudness", "expected"), [(-60, (SILENCE, None)), (-40, (UNHEARD, DETECTOR))])
def test_without_speech_a_level_decides(loudness, expected):
    """A recording without speech is judged by a fixed level, as there is nothing to compare it with."""
    assert kinds(levels([(3 * SECOND, loudness, 0.1)]).coverage(round(3 * SECOND * FRAME_MS), [])) == [expected]


def test_a_knock_in_a_pause_is_silence_and_a_short_loud_pause_is_sound():
    """A second is what most of it is; less than half a second has room for no word."""
    knock, short = levels([(10, -60, 0.0), (5, -10, 0.0), (17, -60, 0.0)]), levels([(100, -20, 0.0)])
    assert kinds(knock.coverage(1_024, [])) == [(SILENCE, None)]
    parts = short.coverage(3_200, [answer(0, 1_000), answer(1_320, 3_200)])
    assert kinds(parts) == [(WORDS, None), (SOUND, None), (WORDS, None)]


def test_the_louder_and_likelier_channel_counts():
    """Channels that are cut separately are noted one after the other."""
    found = levels([(2 * SECOND, -70, 0.1)], [(SECOND, -20, 0.2), (SECOND, -90, 0.0)])
    parts = found.coverage(round(2 * SECOND * FRAME_MS), [])
    assert kinds(parts) == [(UNHEARD, DETECTOR), (SILENCE, None)]
    assert parts[1].confidence == pytest.approx(0.9, abs=0.01)
