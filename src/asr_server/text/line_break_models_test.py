"""Phrases of scripts without spaces."""

from asr_server.text import line_break_models


def test_phrases_end_where_readers_pause():
    """Japanese, Thai and Chinese each go to the model that knows them."""
    cases = [
        ["今日は", "天気が", "いいですね。"],
        ["วัน", "นี้", "อากาศ", "ดี"],
        ["今天", "天气", "很", "好，", "我们", "去", "北京", "大学"],
    ]
    for parts in cases:
        ends = {sum(map(len, parts[: i + 1])) for i in range(len(parts))}
        assert line_break_models.ends("".join(parts)) == ends, parts


def test_a_script_that_no_model_knows_may_be_broken_anywhere():
    """Khmer, Lao and Myanmar are not refused."""
    assert line_break_models.ends("ខ្មែរ") == {1, 2, 3, 4, 5}
