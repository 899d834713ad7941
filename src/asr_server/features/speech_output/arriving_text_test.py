"""Texts in pieces: their sentences are those of the whole."""

import random

import pytest

from asr_server.core.errors import UnsupportedLanguage
from asr_server.features.speech_output.arriving_text import ArrivedSentence, ArrivingText
from asr_server.text.sentences import sentences

GERMAN = "Am 3. Mai kam er z. B. um 4 Uhr. Das war spät! »Ach so?« Ja … 3. Wahl: nichts\n\n- eins\n- zwei\nund Schluss"
TEXTS = [
    GERMAN,
    "Dr. Smith called at 3 p.m. to confirm. He did.",
    "",
    " \n ",
    "--- * ---",
    "今日は。元気ですか？はい",
    "x" * 900,
]


def _in_pieces(arriving, text, rng):
    found = []
    while text:
        size = rng.choice([1, 2, 3, 10, 1_000])
        found += arriving.push(text[:size])
        text = text[size:]
    return found + arriving.end()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("stated", ["de", None])
def test_a_text_in_any_pieces_has_the_sentences_of_the_whole(text, stated):
    """Also where its language is decided by its first sentence, and in a second text over the same session."""
    rng = random.Random(1)
    arriving = ArrivingText(stated, "en", lambda first: "de")
    whole = [ArrivedSentence(span.text, "de") for span in sentences(text, "de")]
    for _ in range(20):
        assert _in_pieces(arriving, text, rng) == whole
        assert arriving.waiting_characters == 0


def test_the_first_sentence_decides_the_language_of_each_text():
    """The end of a text is the end of what was decided; its first sentence is the same in any pieces."""
    asked = []
    arriving = ArrivingText(None, "en", lambda first: asked.append(first) or f"l{len(asked)}")
    assert [arriving.push(piece) for piece in ("One", ". T", "wo")] == [[], [ArrivedSentence("One.", "l1")], []]
    assert arriving.end() == [ArrivedSentence("Two", "l1")]
    assert arriving.push("Three. F") == [ArrivedSentence("Three.", "l2")]
    arriving.clear()
    assert arriving.end() == []
    assert arriving.push("Five. S") == [ArrivedSentence("Five.", "l3")]
    assert asked == ["One.", "Three.", "Five."]


def test_a_text_in_a_language_without_a_voice_is_forgotten():
    """The next piece begins another text."""

    def refuse(first):
        raise UnsupportedLanguage("No voice.", param="language")

    arriving = ArrivingText(None, "en", refuse)
    with pytest.raises(UnsupportedLanguage):
        arriving.push("One. Two. T")
    assert (arriving.waiting_characters, arriving.end()) == (0, [])


@pytest.mark.parametrize("stated", ["en", None])
def test_what_waits_is_counted(stated):
    """Until its sentence is certain."""
    arriving = ArrivingText(stated, "en", lambda first: "en")
    arriving.push("Half of ")
    arriving.push("it")
    assert arriving.waiting_characters == 10
    arriving.push(". Next")
    assert arriving.waiting_characters == 4
