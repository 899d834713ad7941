"""Syllables of written words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.text.syllables import syllables


def test_signs_are_worth_what_they_write():
    """Each line of the table is one."""
    cases = [
        ("你", "Chinese", 1),
        ("今", "Japanese", 1.5),
        ("きゃ", "Japanese", 1),
        ("안녕", "Korean", 2),
        ("banana", "English", 2),
        ("नमस्ते", "Hindi", 3),
        ("ดี", "Thai", 0.5),
        ("كتاب", "Arabic", 2),
        ("42", "", 3),
        ("người", "Vietnamese", 1),
        ("người,", "Vietnamese", 1.5),
        ("€", "", 2),
        ("你，", "Chinese", 1.5),
        ("你。", "Chinese", 1.5),
    ]
    for word, language, expected in cases:
        assert syllables(word, language) == pytest.approx(expected), (word, language)


@given(st.text(max_size=20), st.sampled_from(["", "Japanese"]))
def test_every_word_takes_time(word, language):
    """Never nothing, whatever the text is."""
    assert syllables(word, language) >= 0.5
