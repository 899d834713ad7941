"""Scripts without spaces."""

import re

from asr_server.text import scripts


def test_unspaced_signs_are_known():
    """Letters of every such script and the punctuation among them."""
    for char in "你あアไທမខ々ー。「，Ａ𠀀":
        assert scripts.is_unspaced(char), char


def test_spaced_signs_are_not_among_them():
    """Neither Latin, Hangul, Devanagari, Cyrillic nor common punctuation."""
    for char in "aé1 한हбα.,“(€😀":
        assert not scripts.is_unspaced(char), char


def test_punctuation_is_no_letter():
    """A sign that is no word by itself is not counted as one."""
    for char in "，。「」！・ๆ":
        assert not re.match(f"[{scripts.LETTERS}]", char), char
