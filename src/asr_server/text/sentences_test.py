"""The end of a sentence."""

import pytest

from asr_server.text.sentences import ends_sentence


@pytest.mark.parametrize(
    "text", ["Yes.", "Who?", 'He said "no!"', "你好。", "什么？", "مرحبا؟", "नमस्ते।", "Well… ", "（好。）"]
)
def test_a_mark_at_the_end_ends_a_sentence(text):
    """In every script, also before closing quotes and brackets."""
    assert ends_sentence(text)


@pytest.mark.parametrize("text", ["", " ", "turn on", "Yes. And", "one,", "你好，", "3.5 metres", "well -"])
def test_everything_else_does_not(text):
    """A mark in the middle, a comma, nothing at all."""
    assert not ends_sentence(text)
