"""Which segments are heard again in another language, and which of two answers is taken."""

import math

import pytest

from asr_server.engine.protocol import Finish, Hypothesis
from asr_server.recordings.spoken_language import Heard, Rival, rival


def said(language, probability=1.0, words=(-0.3,), finish=Finish.END):
    """The answer whose language and words have these probabilities."""
    logprobs = (math.log(probability), *words)
    text, pieces = "so" * len(words), (b"", *[b"so"] * len(words))
    return Hypothesis(text, language, tuple(range(len(pieces))), logprobs, finish, 1, 1, 1, pieces=pieces)


def at(start_s, seconds, language, probability=1.0):
    return Heard(start_s, start_s + seconds, said(language, probability))


ENGLISH = [at(0, 20, "English"), at(20, 20, "English")]


@pytest.mark.parametrize(
    ("seconds", "probability", "is_sure"),
    [(1, 0.5, False), (1, 0.9, False), (1, 0.99, True), (9, 0.5, False), (9, 0.9, True), (11, 0.5, True)],
)
def test_a_language_must_be_the_surer_the_shorter_it_is_spoken(seconds, probability, is_sure):
    """After 40 s of another one; what is longer than 10 s tells its language by itself."""
    found = rival(at(40, seconds, "French", probability), ENGLISH)
    assert found is None if is_sure else found is not None and found.language == "English"


def test_a_change_of_language_is_kept():
    """What was surely said in a language before makes it probable, and the last minutes count most."""
    doubtful = at(60, 2, "French", 0.8)
    assert rival(doubtful, ENGLISH) is not None
    assert rival(doubtful, [*ENGLISH, at(40, 10, "French", 0.9)]) is None
    assert rival(at(700, 2, "English", 0.5), [*ENGLISH, at(690, 9, "French")]).language == "French"


def test_seconds_count_as_much_as_their_language_was_sure():
    """20 s that are hardly English are less than 12 that surely are French."""
    heard = [at(0, 20, "English", 0.4), at(20, 12, "French")]
    assert rival(at(32, 1, "English", 0.5), heard).language == "French"
    assert rival(at(32, 1, "French", 0.5), heard) is None


def test_an_outlier_is_shorter_than_the_speech_around_it():
    """A greeting is heard in the language that follows it, and not the other way round."""
    greeting, talk = at(0, 1, "Dutch", 0.6), at(1, 8, "German", 0.6)
    assert rival(greeting, [talk]).language == "German"
    assert rival(talk, [greeting]) is None
    assert rival(greeting, []) is None


def test_silence_is_in_no_language():
    """Neither as what is heard nor around it."""
    silence = Heard(40, 41, said("", words=()))
    assert rival(silence, ENGLISH) is None
    assert rival(at(41, 1, "French", 0.5), [silence]) is None


@pytest.mark.parametrize(
    ("second", "is_likelier"),
    [
        (said("English", 0.4), True),
        (said("English", 0.4, words=(-0.3,) * 5), True),
        (said("English", 0.001, words=(-1.5,)), False),
        (said("English", 0.4, words=(-6.0,)), False),
        (said("English", 0.4, words=()), False),
        (said("English", 0.4, finish=Finish.LOOP), False),
    ],
    ids=["likely", "longer", "language", "words", "silent", "stopped"],
)
def test_language_and_words_together_decide(second, is_likelier):
    """The language by the model and by the speech around it, and the words as the model finds them in it."""
    assert Rival("English", 0.95).is_likelier(second, said("French", 0.55)) is is_likelier
    assert not Rival("English", 0.05).is_likelier(second, said("French", 0.55))
