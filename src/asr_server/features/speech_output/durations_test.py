"""How long texts will be, about."""

import pytest

from asr_server.features.speech_output.durations import spoken_s


@pytest.mark.parametrize(
    ("text", "least_s", "most_s"),
    [
        ("", 0, 0),
        # eSpeak NG takes 3.0 s and 4.5 s (voice m3).
        ("The quick brown fox jumps over the lazy dog near the river.", 3, 5),
        ("今天天气很好，我们一起去公园散步吧。", 3, 5),
    ],
)
def test_estimates_are_near_what_is_spoken(text, least_s, most_s):
    """In letters, and in characters that are syllables."""
    assert least_s <= spoken_s(text) <= most_s
