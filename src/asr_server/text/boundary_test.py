"""The boundary at the end of a word."""

from asr_server.text import boundary
from asr_server.text.boundary import Boundary


def test_sentences():
    """The mark's own closing quotes may follow it."""
    for word in ["end.", 'end!"', "了。」", "है।", "؟نعم؟", "what?)", "so…", "ｿｳ｡", "ነው።", "ហើយ។", "တယ်။", "է։"]:
        assert boundary.after(word) is Boundary.SENTENCE, word


def test_clauses():
    """Commas of all scripts, and a dash."""
    for word in ["one,", "two;", "三，", "، نعم،", "well —", "ｿｳ､", "ነው፣", "တယ်၊"]:
        assert boundary.after(word) is Boundary.CLAUSE, word


def test_nothing():
    """Points inside figures and after initials end nothing; after a small number nobody knows: "am 3. Mai"."""
    for word in ["", "word", "3.14", "J.", "U.S.", "p.m.", "don't", "ไทย", "5%", "3.", "31."]:
        assert boundary.after(word) is Boundary.NONE, word


def test_tied():
    """Titles belong to what comes: "Dr. Who"."""
    for word in ["Dr.", "(Mr.", "St."]:
        assert boundary.after(word) is Boundary.TIED, word


def test_figures_that_are_no_ordinals():
    """Years, times and sums end a sentence like any word."""
    for word in ["2024.", "10:30.", "1,50.", "100.", "3.5.", "3!"]:
        assert boundary.after(word) is Boundary.SENTENCE, word


def test_a_mark_at_the_end_of_a_text_ends_a_sentence():
    """The mark ends it in every script, also before closing quotes and brackets."""
    for text in ["Yes.", "Who?", 'He said "no!"', "你好。", "什么？", "مرحبا؟", "नमस्ते।", "Well… ", "（好。）"]:
        assert boundary.ends_sentence(text), text


def test_other_texts_end_no_sentence():
    """A mark in the middle, a comma, nothing at all."""
    for text in ["", " ", "turn on", "Yes. And", "one,", "你好，", "3.5 metres", "well -"]:
        assert not boundary.ends_sentence(text), text
