"""Scripts of translations."""

from asr_server.text import target_languages
from asr_server.translator.scripts import wrong_script


def test_a_wrong_script_is_noticed():
    """Chinese for English, Russian for German, English for Japanese, kana for Chinese."""
    cases = [
        ("你好世界", "en"),
        ("Привет, мир", "de"),
        ("Good morning to everybody", "ru"),
        ("Good morning to everybody", "ja"),
        ("こんにちは世界", "zh"),
        ("Sehr gut 好的好的好的好的好的好的", "en"),
    ]
    for text, target in cases:
        assert wrong_script(text, target_languages.find(target)), (text, target)


def test_names_numbers_and_mixed_texts_are_accepted():
    """Brands stand in texts of every script, and what cannot be judged is let through."""
    cases = [
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
    ]
    for text, target in cases:
        assert not wrong_script(text, target_languages.find(target)), (text, target)
