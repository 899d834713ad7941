"""Scripts without spaces."""

import re

import pytest

from asr_server.text import scripts


@pytest.mark.parametrize("char", "你あアไທမខ々ー。「，Ａ𠀀")
def test_unspaced_signs_are_known(char):
    """Letters of every such script and the punctuation among them."""
    assert scripts.is_unspaced(char)


@pytest.mark.parametrize("char", "aé1 한हбα.,“(€😀")
def test_spaced_signs_are_not_among_them(char):
    """Neither Latin, Hangul, Devanagari, Cyrillic nor common punctuation."""
    assert not scripts.is_unspaced(char)


@pytest.mark.parametrize("char", "，。「」！・ๆ")
def test_punctuation_is_no_letter(char):
    """What is no word by itself is not counted as one."""
    assert not re.match(f"[{scripts.LETTERS}]", char)
