"""Aligned times on the transcript's words."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import TimeSource
from asr_server.subtitle.alignment import estimate, transfer_timestamps
from asr_server.subtitle.conftest import VOCABULARY, text
from asr_server.text import words

ALIGNED, ESTIMATED = TimeSource.ALIGNED, TimeSource.ESTIMATED


def _assert_laws(written, timed, span):
    assert [word.text for word in timed] == words.split(written)
    assert all(word.start_ms < word.end_ms for word in timed)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(timed))
    assert not timed or (timed[0].start_ms >= span[0] and timed[-1].end_ms <= max(span[1], span[0] + len(timed)))


def test_a_whole_alignment_is_taken_over():
    """Every word has the time of its piece, with its punctuation."""
    for script in VOCABULARY:
        rng = random.Random(4)
        for _ in range(40):
            written = text(rng, script, rng.randint(1, 14))
            kept = ["".join(filter(str.isalnum, word)) for word in words.split(written)]
            pieces = [(word, 1000 + 300 * i, 1280 + 300 * i) for i, word in enumerate(kept)]
            timed = transfer_timestamps(written, pieces, (1000, 31_000))
            assert [word.text for word in timed] == words.split(written), script
            found = [(word.start_ms, word.end_ms, word.source) for word in timed]
            # A sign such as "№" or an emoji has no letters for an aligner, and none to be found by.
            assert all(one == (*piece[1:], ALIGNED) for one, piece in zip(found, pieces, strict=True) if piece[0])


@given(
    st.text(alphabet="ab é,.好 ", min_size=1, max_size=20).filter(words.split),
    st.lists(
        st.tuples(st.text(alphabet="abé好", max_size=4), st.integers(-99, 999), st.integers(-99, 999)), max_size=8
    ),
    st.tuples(st.integers(0, 500), st.integers(0, 500)).map(lambda s: (s[0], sum(s))),
)
def test_any_pieces_will_do(written, pieces, span):
    """Nothing that an aligner says can break the order of words or leave one without time."""
    _assert_laws(written, transfer_timestamps(written, pieces, span), span)


def test_pieces_are_found_by_their_letters():
    """Case, accents, width and punctuation do not matter, nor that a word is in two pieces or two in one."""
    pieces = [("strasse", 0, 400), ("ok", 400, 700), ("don", 700, 800), ("t", 800, 900), ("今日", 900, 1300)]
    timed = transfer_timestamps("Straße, ＯＫ! don't 今日。", pieces, (0, 1300))
    assert [word.text for word in timed] == ["Straße,", "ＯＫ!", "don't", "今", "日。"]
    assert [(word.start_ms, word.end_ms) for word in timed] == [*pairwise((0, 400, 700, 900, 1100, 1300))]
    assert {word.source for word in timed} == {ALIGNED}


@pytest.mark.parametrize(
    ("written", "pieces", "sources", "place"),
    [
        # Without an alignment the words share the span.
        ("one two three", [], "EEE", (2000, 7300)),
        # A missing word takes the time that it may need, not all the silence there is.
        ("one two three", [("one", 0, 300), ("three", 9000, 9300)], "AEA", (300, 1000)),
        # An empty time is shared with the neighbour that has most; both are then estimates.
        ("one two three", [("one", 0, 80), ("two", 80, 80), ("three", 80, 800)], "AEE", (80, 800)),
        # A single letter of a word is no evidence.
        ("one information", [("one", 0, 300), ("i", 300, 400)], "AE", (300, 9300)),
        # A time that is shorter than the aligner can tell is not believed: the word gets a share of its neighbour's.
        ("one two three", [("one", 0, 300), ("two", 300, 320), ("three", 320, 900)], "AEE", (300, 900)),
        # Of times that run backwards, the longest run in order is believed.
        ("one two three", [("one", 0, 300), ("two", 8000, 8300), ("three", 600, 900)], "AEA", (300, 600)),
    ],
)
def test_a_word_that_was_not_measured_lies_between_its_neighbours_and_says_so(written, pieces, sources, place):
    """The words around it stay as measured."""
    timed = transfer_timestamps(written, pieces, (0, 9300))
    assert [word.source for word in timed] == [{"A": ALIGNED, "E": ESTIMATED}[letter] for letter in sources]
    assert place[0] <= timed[1].start_ms <= timed[1].end_ms - 40
    assert timed[1].end_ms <= place[1]


REGION = st.tuples(st.integers(0, 9000), st.integers(0, 2000)).map(lambda s: (s[0], s[0] + s[1]))
REGIONS = st.lists(REGION, max_size=6).filter(lambda regions: any(start < end for start, end in regions))


def _assert_laws_of_estimates(written, timed):
    assert all(word.source is ESTIMATED for word in timed)
    _assert_laws(written, timed, (0, timed[-1].end_ms) if timed else (0, 0))


def test_words_lie_inside_the_speech():
    """All words, in order, disjoint, none empty, none over a pause; each region has one if they are enough."""
    for script in VOCABULARY:
        rng = random.Random(3)
        for _ in range(100):
            written = text(rng, script, rng.randint(1, 30))
            now, speech_regions = 0, []
            for _ in range(rng.randint(1, 6)):
                now += rng.randint(500, 3000)
                speech_regions.append((now, now + rng.randint(200, 8000)))
                now = speech_regions[-1][1]
            timed = estimate(written, "", speech_regions)
            _assert_laws_of_estimates(written, timed)
            inside = [[w for w in timed if a <= w.start_ms and w.end_ms <= b] for a, b in speech_regions]
            assert sum(map(len, inside)) == len(timed), script
            assert all(inside) or len(timed) < len(speech_regions), script


@given(st.text(alphabet="ab é,.好 ", max_size=30), REGIONS)
def test_any_regions_will_do(written, speech_regions):
    """Overlapping, touching, unordered, empty and far too short ones: the rules hold, and speech is not left early."""
    timed = estimate(written, "", speech_regions)
    _assert_laws_of_estimates(written, timed)
    if timed:
        real = [s for s in speech_regions if s[1] > s[0]]
        low = min(start for start, _ in real)
        assert timed[0].start_ms >= low
        assert timed[-1].end_ms <= max(max(end for _, end in real), low + len(timed))


@pytest.mark.parametrize(
    ("written", "regions", "before"),
    [
        # Rather there than in the middle of the next one, although that is a little nearer.
        ("one two three four. five six seven eight", [(0, 1160), (2000, 2840)], 4),
        # One is spoken faster: three slow words would end a second after the pause.
        ("He left. And so we all went home again.", [(0, 2_000), (3_000, 4_000)], 2),
    ],
)
def test_a_pause_falls_behind_a_sentence_that_ends_near_it(written, regions, before):
    timed = estimate(written, "English", regions)
    assert len([word for word in timed if word.end_ms <= regions[0][1]]) == before
