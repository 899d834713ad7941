"""Utterances: whole clauses, of a bounded length, with the phonemes that the voice knows."""

from asr_server.engine.speech.espeak.wire import Clause
from asr_server.features.piper.phonemes import MAX_PHONEMES, utterances

KNOWN = frozenset("abcde ,.!ˈ_^$\u0303")


def spoken(*clauses):
    return ["".join(one) for one in utterances([Clause(*one) for one in clauses], KNOWN)]


def test_clauses_keep_their_signs():
    assert spoken(("ab", ","), ("cˈde", "!")) == ["ab, cˈde!"]


def test_what_the_voice_does_not_know_is_left_out():
    """The signs of the start, the end and the gaps are no phonemes; letters with marks are taken apart."""
    assert spoken(("a^x_b$", "?"), ("(fr)ã", ".")) == ["ab a\u0303."]


def test_a_text_without_a_phoneme_has_no_utterance():
    assert spoken() == spoken(("", "!"), ("xyz", ".")) == []


def test_utterances_are_bounded():
    """Utterances end between two clauses, else between two words, else anywhere."""
    assert [len(one) for one in spoken(*[("abcd " * 15, ",")] * 4)] == [151, 151]
    words = spoken(("abcd " * 100, "."))
    assert max(map(len, words)) <= MAX_PHONEMES
    assert {one.split()[-1] for one in words} <= {"abcd", "abcd."}
    assert [len(one) for one in spoken(("a" * 450, ""))] == [200, 200, 50]
