"""The language of a text by its script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.speech_output.spoken_language import language_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好，世界", "zh"),
        ("今日は東京です", "ja"),
        ("カタカナ", "ja"),
        ("안녕하세요", "ko"),
        ("Привет, мир", "ru"),
        ("Καλημέρα", "el"),
        ("नमस्ते", "hi"),
        ("مرحبا", "ar"),
        ("שלום", "he"),
        ("สวัสดี", "th"),
        ("გამარჯობა", "ka"),
        ("বাংলা", "bn"),
        ("打开WiFi", "zh"),
        ("He met 田中 in the station.", "xx"),
        ("Grüße aus Łódź", "xx"),
        ("123 ؟ । 。 😀", "xx"),
        ("", "xx"),
    ],
)
def test_a_script_names_its_language(text, expected):
    """The script of most letters decides. Latin letters, digits and punctuation say nothing."""
    assert language_of(text, "xx") == expected


@pytest.mark.parametrize(
    ("text", "default"),
    [("東京", "ja"), ("你好", "zh-TW"), ("你好", "yue"), ("Привіт", "uk"), ("سلام", "fa-IR"), ("नमस्कार", "mr")],
)
def test_the_default_stays_where_it_is_written_so(text, default):
    """Several languages share a script."""
    assert language_of(text, default) == default


def test_kana_decide_between_japanese_and_chinese():
    """Kana decide also against a default, which is of no use there."""
    assert language_of("東京都庁へ行く", "zh") == "ja"
    assert language_of("東京都庁", "ko") == "zh"


@given(st.text())
def test_whatever_the_text_there_is_a_language(text):
    """A code or the default, and the default for text in ASCII."""
    assert language_of(text, "xx").isalpha()
    assert language_of(text.encode("ascii", "ignore").decode(), "xx") == "xx"
