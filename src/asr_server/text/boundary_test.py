"""What a word ends."""

import pytest

from asr_server.text import boundary
from asr_server.text.boundary import Boundary


@pytest.mark.parametrize("word", ["end.", 'end!"', "了。」", "है।", "؟نعم؟", "what?)", "so…"])
def test_sentences(word):
    """Also behind the mark's own closing quotes."""
    assert boundary.after(word) is Boundary.SENTENCE


@pytest.mark.parametrize("word", ["one,", "two;", "三，", "، نعم،", "well —"])
def test_clauses(word):
    """Commas of all scripts, and a dash."""
    assert boundary.after(word) is Boundary.CLAUSE


@pytest.mark.parametrize("word", ["", "word", "3.14", "Dr.", "J.", "(Mr.", "don't", "ไทย", "5%"])
def test_nothing(word):
    """Points inside figures and behind titles and initials end nothing."""
    assert boundary.after(word) is Boundary.NONE
