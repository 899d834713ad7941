"""Sentences as runs of one script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.speech_output.engines.espeak.script_runs import script_runs


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Hello, world!", "en", [("en", "Hello, world!")]),
        ("", "en", []),
        ("Say Привет to me.", "en", [("en", "Say "), ("ru", "Привет "), ("en", "to me.")]),
        ("我用 Python 写。", "zh", [("zh", "我用 "), ("en-us", "Python "), ("zh", "写。")]),
        ("한국어 漢字", "ko", [("ko", "한국어 "), ("zh", "漢字")]),
        ("שלום hello", "he", [("he", "שלום "), ("en-us", "hello")]),
        ("full-width Ｈｉ", "en", [("en", "full-width Ｈｉ")]),
        # A script that nobody speaks stays with its neighbours.
        ("rune ᚠ here", "en", [("en", "rune ᚠ here")]),
        ("ᚠ", "en", [("en", "ᚠ")]),
    ],
)
def test_runs(text, language, expected):
    assert script_runs(text, language) == expected


@given(st.text(max_size=200), st.sampled_from(["en", "zh", "ru", "ar", "jbo"]))
def test_nothing_is_lost_or_moved(text, language):
    assert "".join(part for _, part in script_runs(text, language)) == text


def test_a_text_that_changes_its_script_at_every_letter_has_few_runs():
    assert len(script_runs("a\u044f" * 200, "en")) == 16
