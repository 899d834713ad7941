"""What a word ends."""

import pytest

from asr_server.text import boundary
from asr_server.text.boundary import Boundary


@pytest.mark.parametrize(
    "word", ["end.", 'end!"', "了。」", "है।", "؟نعم؟", "what?)", "so…", "ｿｳ｡", "ነው።", "ហើយ។", "တယ်။", "է։"]
)
def test_sentences(word):
    """Also behind the mark's own closing quotes."""
    assert boundary.after(word) is Boundary.SENTENCE


@pytest.mark.parametrize("word", ["one,", "two;", "三，", "، نعم،", "well —", "ｿｳ､", "ነው፣", "တယ်၊"])
def test_clauses(word):
    """Commas of all scripts, and a dash."""
    assert boundary.after(word) is Boundary.CLAUSE


@pytest.mark.parametrize("word", ["", "word", "3.14", "J.", "U.S.", "p.m.", "don't", "ไทย", "5%", "3.", "31."])
def test_nothing(word):
    """Points inside figures and behind initials end nothing; behind a small number nobody knows: "am 3. Mai"."""
    assert boundary.after(word) is Boundary.NONE


@pytest.mark.parametrize("word", ["Dr.", "(Mr.", "St."])
def test_tied(word):
    """Titles belong to what comes: "Dr. Who"."""
    assert boundary.after(word) is Boundary.TIED


@pytest.mark.parametrize("word", ["2024.", "10:30.", "1,50.", "100.", "3.5.", "3!"])
def test_figures_that_are_no_ordinals(word):
    """Years, times and sums end a sentence like any word."""
    assert boundary.after(word) is Boundary.SENTENCE
