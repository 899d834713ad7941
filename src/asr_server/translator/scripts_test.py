"""Scripts of translations."""

import pytest

from asr_server.text import target_languages
from asr_server.translator.scripts import foreign


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("你好世界", "en"),
        ("Привет, мир", "de"),
        ("Good morning to everybody", "ru"),
        ("Good morning to everybody", "ja"),
        ("こんにちは世界", "zh"),
        ("Sehr gut 好的好的好的好的好的好的", "en"),
    ],
)
def test_another_script_is_noticed(text, target):
    """Chinese for English, Russian for German, English for Japanese, kana for Chinese."""
    assert foreign(text, target_languages.find(target))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("Guten Morgen", "en"),  # the script is right; which language it is, nobody looks
        ("OpenAI", "ja"),
        ("東京タワー", "ja"),
        ("あーーっ", "ja"),
        ("うわーーー！", "ja"),
        ("Я купил iPhone 15 Pro Max", "ru"),
        ("Straße µ", "de"),
        ("42!", "zh"),
        ("Ｈｅｌｌｏ", "en"),
        ("whatever", "tlh"),
        ("漢字と한글", "ko"),
    ],
)
def test_names_numbers_and_mixed_texts_are_not_foreign(text, target):
    """Brands stand in texts of every script, and what cannot be judged is let through."""
    assert not foreign(text, target_languages.find(target))
