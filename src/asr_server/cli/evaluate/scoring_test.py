"""Errors of texts, and their times."""

from itertools import pairwise

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.cli.evaluate.scoring import score, tokens

# Few words, so that texts have some in common; digits and signs are what normalisation is about.
TEXTS = st.lists(st.sampled_from(["a", "bb", "abc", "Don't", "21", "é", "Word,"]), max_size=12).map(" ".join)


def _timed(*words):
    return [(word, second, second + 0.9) for second, word in enumerate(words)]


@given(TEXTS.filter(bool), TEXTS)
def test_rates_are_those_of_jiwer(reference, text):
    """jiwer aligns with the same library but counts by itself."""
    found = score(reference, text, "", normalise=False)
    assert found["words"]["rate"] == pytest.approx(jiwer.wer(reference, text))
    assert found["characters"]["rate"] == pytest.approx(jiwer.cer(reference, text))


@given(TEXTS, TEXTS, TEXTS)
def test_passages_are_both_texts_in_order(reference, text, written):
    """And alternate: neighbouring errors are one passage. A server may list other words with times."""
    found = score(reference, text, "en", timed=_timed(*written.split()))
    for side, whole in (("said", reference), ("heard", text)):
        joined = " ".join(filter(None, (one[side] for one in found["passages"])))
        assert joined.split() == tokens(whole, "en", normalise=True)
    kinds = [one in found["errors"] for one in found["passages"]]
    assert all(left != right for left, right in pairwise(kinds))
    assert all(one["start_s"] <= one["end_s"] for one in found["passages"])
    starts = [one["start_s"] for one in found["passages"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("language", "reference", "text", "errors"),
    [
        ("en", "Twenty-one people don't know, Mr. Smith's colour.", "21 people do not know mister smith's color", 0),
        ("en-GB", "I've seen it", "i have seen it", 0),
        ("de", "Don't, bitte!", "do not bitte", 2),
        ("de", "Schöne Straße", "schone strasse", 2),
        ("", "Hello, WORLD", "hello world", 0),
        ("hi", "क़िताब है।", "क़िताब है", 0),
        ("zh", "你好，世界。", "你好世界", 0),
        ("zh", "我用 iPhone 打", "我用iphone打", 0),
        ("en", "...", "", 0),
    ],
)
def test_spelling_that_is_the_same_when_spoken_is_no_error(language, reference, text, errors):
    """English by rules for English, other languages by case and punctuation only; vowel signs stay in their words."""
    assert score(reference, text, language)["words"]["errors"] == errors


@pytest.mark.parametrize(
    ("reference", "text", "words", "errors"),
    [("你好 世界", "你好时界", 4, 1), ("ที่นี่", "ที่นั่", 6, 1), ("これは本です", "これはほんです", 6, 2)],
)
def test_scripts_without_spaces_are_counted_by_character(reference, text, words, errors):
    found = score(reference, text, "")
    assert (found["words"]["units"], found["words"]["errors"]) == (words, errors)
    assert found["characters"] == found["words"]


def test_errors_have_the_times_of_the_words_that_were_written():
    """A missing word has the gap where it would be; 21 has the time of both of its words."""
    timed = _timed("Twenty", "one", "people", "go.", "They", "all", "don't", "now")
    text = "Twenty one people go. They all don't now"
    found = score("22 people come and go. They did not now, please", text, "en", timed=timed)
    assert [tuple(one.values()) for one in found["errors"]] == [
        ("22", "21", 0, 1.9),
        ("come and", "", 2.9, 3),
        ("did", "all do", 5, 6.9),
        ("please", "", 7.9, 7.9),
    ]
