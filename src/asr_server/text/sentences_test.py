"""The end of a sentence."""

from asr_server.text.sentences import ends_sentence


def test_a_mark_at_the_end_ends_a_sentence():
    """In every script, also before closing quotes and brackets."""
    for text in ["Yes.", "Who?", 'He said "no!"', "你好。", "什么？", "مرحبا؟", "नमस्ते।", "Well… ", "（好。）"]:
        assert ends_sentence(text), text


def test_everything_else_does_not():
    """A mark in the middle, a comma, nothing at all."""
    for text in ["", " ", "turn on", "Yes. And", "one,", "你好，", "3.5 metres", "well -"]:
        assert not ends_sentence(text), text
