"""Estimated word times."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import TimeSource
from asr_server.subtitle.conftest import VOCABULARY, text
from asr_server.subtitle.timing import estimate, spread
from asr_server.text import words

STRETCHES = st.lists(
    st.tuples(st.integers(0, 9000), st.integers(0, 2000)).map(lambda s: (s[0], s[0] + s[1])), max_size=6
)


def _assert_laws(written, timed):
    assert [word.text for word in timed] == words.split(written)
    assert all(word.start_ms < word.end_ms and word.source is TimeSource.ESTIMATED for word in timed)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(timed))


def test_words_lie_inside_the_speech():
    """All words, in order, disjoint, none empty, none over a pause; each region has one if they are enough."""
    for script in VOCABULARY:
        rng = random.Random(3)
        for _ in range(300):
            written = text(rng, script, rng.randint(1, 30))
            now, speech_regions = 0, []
            for _ in range(rng.randint(1, 6)):
                now += rng.randint(500, 3000)
                speech_regions.append((now, now + rng.randint(200, 8000)))
                now = speech_regions[-1][1]
            timed = estimate(written, "", speech_regions)
            _assert_laws(written, timed)
            inside = [
                next((i for i, (a, b) in enumerate(speech_regions) if a <= w.start_ms and w.end_ms <= b), None)
                for w in timed
            ]
            assert None not in inside, script
            assert len(set(inside)) == len(speech_regions) or len(timed) < len(speech_regions), script


@given(st.text(alphabet="ab é,.好 ", max_size=30), STRETCHES)
def test_any_regions_will_do(written, speech_regions):
    """Overlapping, touching, unordered, empty and far too short ones: the rules hold, and speech is not left early."""
    if not any(end > start for start, end in speech_regions):
        if words.split(written):
            with pytest.raises(ValueError, match="region"):
                estimate(written, "", speech_regions)
        return
    timed = estimate(written, "", speech_regions)
    _assert_laws(written, timed)
    if timed:
        real = [s for s in speech_regions if s[1] > s[0]]
        low = min(start for start, _ in real)
        assert timed[0].start_ms >= low
        assert timed[-1].end_ms <= max(max(end for _, end in real), low + len(timed))


def test_a_pause_falls_behind_a_sentence_that_ends_near_it():
    """Rather there than in the middle of the next one, although that is a little nearer."""
    timed = estimate("one two three four. five six seven eight", "English", [(0, 1160), (2000, 2840)])
    assert [word.text for word in timed if word.end_ms <= 1160] == ["one", "two", "three", "four."]


def test_regions_that_touch_are_one():
    """There is no pause between them."""
    assert estimate("one two three", "", [(0, 100), (100, 900)]) == estimate("one two three", "", [(0, 900)])


def test_a_longer_word_has_more_time():
    """The time is in proportion to its syllables."""
    short, long = estimate("so information", "English", [(0, 1300)])
    assert (long.end_ms - long.start_ms) > 3 * (short.end_ms - short.start_ms)


@given(st.lists(st.integers(8, 144).map(lambda n: n / 16), min_size=1, max_size=20), st.integers(0, 1000))
def test_shares_fill_the_region(weights, extra):
    """No gap, no overlap, no empty share, whatever the weights."""
    end = 10 + len(weights) + extra
    shares = spread(weights, 10, end)
    assert shares[0][0] == 10
    assert shares[-1][1] == end
    assert all(a < b for a, b in shares)
    assert all(before[1] == after[0] for before, after in pairwise(shares))
