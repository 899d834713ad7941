"""Edits of a text, and the words and times that follow from them."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import Segment, TimeSource, Token, Word
from asr_server.features.rewriting.edits import Edit, applied

ALIGNED, ESTIMATED = TimeSource.ALIGNED, TimeSource.ESTIMATED


def _segment(text):
    """A segment whose words take 100 ms each, with 10 ms between them."""
    words = [Word(word, 110 * n, 110 * n + 100, ALIGNED, confidence=0.5) for n, word in enumerate(text.split())]
    return Segment(0, 110 * len(words), text, "English", (1, 2), -0.1, 0.0, words=tuple(words))


def _listed(segment):
    return [(word.text, word.start_ms, word.end_ms) for word in segment.words]


def test_one_word_in_place_of_several_has_their_time():
    """A new word lasts from the start of the first to the end of the last; punctuation stays."""
    found = applied(_segment("it is twenty five, yes"), [Edit(6, 17, "25")])
    assert found.text == "it is 25, yes"
    assert _listed(found) == [("it", 0, 100), ("is", 110, 210), ("25,", 220, 430), ("yes", 440, 540)]
    assert (found.words[2].source, found.words[2].confidence) == (ALIGNED, 0.5)


def test_several_words_in_place_of_one_divide_its_time():
    found = applied(_segment("it is $25 now"), [Edit(6, 9, "twenty-five dollars")])
    assert [word.text for word in found.words] == ["it", "is", "twenty-five", "dollars", "now"]
    first, second = found.words[2:4]
    assert (first.start_ms, first.end_ms, second.end_ms) == (220, second.start_ms, 320)
    assert (first.source, found.words[4].source) == (ESTIMATED, ALIGNED)


def test_edits_in_one_word_and_a_word_in_two_edits_are_one():
    """The kind of what is masked is on the word."""
    text = "mail a@b.de/c@d.de now"
    found = applied(_segment(text), [Edit(5, 11, "[EMAIL]", "email"), Edit(12, 18, "[EMAIL]", "email")])
    assert _listed(found) == [("mail", 0, 100), ("[EMAIL]/[EMAIL]", 110, 210), ("now", 220, 320)]
    assert [word.masked for word in found.words] == [None, "email", None]
    each = applied(_segment("one two"), [Edit(0, 3, "[A]", "a"), Edit(4, 7, "[B]", "b")])
    assert [word.masked for word in each.words] == ["a", "b"]


def test_tokens_of_the_old_text_are_left_out():
    found = applied(replace(_segment("one"), words=(), spoken=(Token(b"one", -0.1),)), [Edit(0, 3, "1")])
    assert (found.words, found.spoken) == ((), ())


@given(
    st.lists(st.sampled_from(["a", "bc", "d,", "e-f", "(g)"]), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), max_size=8, unique=True),
    st.sampled_from(["1", "two words", "[X]"]),
)
def test_words_are_those_of_the_text_in_order_of_time(parts, places, written):
    segment = _segment(" ".join(parts))
    cuts = sorted(place for place in places if place <= len(segment.text))
    edits = [Edit(start, end, written) for start, end in list(pairwise(cuts))[::2] if segment.text[start:end].strip()]
    found = applied(segment, edits)
    assert "".join(word.text for word in found.words).replace(" ", "") == found.text.replace(" ", "")
    assert all(word.start_ms < word.end_ms for word in found.words)
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(found.words))
    assert found.words[0].start_ms == 0
    assert found.words[-1].end_ms == segment.words[-1].end_ms
