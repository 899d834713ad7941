"""Scripts without spaces, and texts that continue shown words."""

import re

from hypothesis import given
from hypothesis import strategies as st

from asr_server.text import scripts


def test_unspaced_signs_are_known():
    """A sign that is no word by itself is not counted as a letter."""
    assert [char for char in "你あアไທမខ々ー。「，Ａ𠀀" if not scripts.is_unspaced(char)] == []
    assert [char for char in "aé1 한हбα.,“(€😀" if scripts.is_unspaced(char)] == []
    assert re.findall(f"[{scripts.LETTERS}]", "，。「」！・ๆ") == []


def test_scripts_join_as_they_are_written():
    """A space between spans, none inside scripts that have none."""
    cases = ["hello| |world", "今天は。||「はい」", "สวัสดี||ครับ", "안녕| |하세요", "打开| |WiFi"]
    for case in cases:
        left, joint, right = case.split("|")
        assert scripts.join([f" {left} ", "", right]) == left + joint + right


@given(st.lists(st.text()))
def test_no_character_is_lost_or_doubled(texts):
    """Joining only adds spaces and trims white space at the edges of spans."""
    kept = "".join("".join(t.split()) for t in texts)
    assert "".join(scripts.join(texts).split()) == kept


def test_lines_become_one_as_they_are_written():
    """No space comes into the middle of Chinese and Japanese; where spaces mean something there is one."""
    for lines in ("turn on\nthe light", "打开\nWiFi", "วันนี้ดี\nมาก", "안녕\n하세요"):
        assert scripts.unbroken(lines) == lines.replace("\n", " ")
    assert scripts.unbroken("我们的人工智能\n实验室") == "我们的人工智能实验室"
    assert scripts.unbroken("今日は、\nいい天気") == "今日は、いい天気"


_WORDS = st.lists(st.sampled_from(["turn", "on", "the", "light", "灯", "开"]), max_size=8)


@given(_WORDS, _WORDS)
def test_no_shown_word_is_taken_back(shown, text):
    """Whatever comes, the result begins with what was shown."""
    assert scripts.continued(" ".join(shown), " ".join(text)).startswith(" ".join(shown))


def test_a_text_resumes_after_the_shown_words():
    """A changed, missing or extra word is not said twice, in scripts with and without spaces."""
    cases = [
        ("turn on the", "turn of the light", "turn on the light"),
        ("turn on the", "Turn on, the light", "turn on the light"),
        ("turn the", "turn on the light", "turn the light"),
        ("turn on on the", "turn on the light", "turn on on the light"),
        ("打开客厅", "打开大厅的灯", "打开客厅的灯"),
        ("打开", "turn it", "打开"),
        ("", "hello", "hello"),
        ("turn on", "turn on the light", "turn on the light"),
    ]
    for shown, text, result in cases:
        assert scripts.continued(shown, text) == result, (shown, text)
