"""What the speakers of a live session are called. A voice is a direction; the similarity of two is their cosine."""

import numpy as np

from asr_server.features.speakers.live_labels import LiveNames
from asr_server.features.speakers.voices import NamedVoice

_ANN, _BOB, _CYD = np.eye(3, dtype=np.float32)


def _voices(**prints):
    return [NamedVoice(name=name, voice_print=print_) for name, print_ in prints.items()]


def _between(one, other, share):
    """A direction that is so similar to `one`."""
    return (share * one + np.sqrt(1 - share**2) * other).astype(np.float32)


def test_who_is_no_stored_voice_has_a_letter():
    """Letters are not moved up for names."""
    names = LiveNames()
    names.recognise({0: _ANN, 1: _BOB, 2: _CYD}, _voices(Bob=_BOB))
    assert [names.of(speaker) for speaker in range(4)] == ["A", "Bob", "C", "D"]


def test_a_name_comes_and_goes_with_the_voice_until_it_is_settled():
    """More speech may show that it was somebody else."""
    names, stored = LiveNames(), _voices(Ann=_ANN, Bob=_BOB)
    names.recognise({0: _between(_ANN, _BOB, 0.9)}, stored)
    assert names.of(0) == "Ann"
    names.recognise({0: _between(_ANN, _BOB, 0.3)}, stored)
    assert names.of(0) == "Bob"
    names.settle(0)
    names.recognise({0: _ANN}, stored)
    assert names.of(0) == "Bob"


def test_a_settled_letter_stays_and_keeps_its_voice_from_others():
    """Ann was heard too late to be named. The similar voice of somebody else is not hers."""
    names = LiveNames()
    names.settle(0)
    names.recognise({0: _ANN, 1: _between(_ANN, _BOB, 0.6)}, _voices(Ann=_ANN))
    assert (names.of(0), names.of(1)) == ("A", "B")


def test_a_settled_name_is_given_to_nobody_else():
    """Also when the voice of somebody else is more similar, or that of its owner is not known any more."""
    names, stored = LiveNames(), _voices(Ann=_ANN)
    names.recognise({0: _between(_ANN, _BOB, 0.7)}, stored)
    names.settle(0)
    names.recognise({0: _between(_ANN, _BOB, 0.7), 1: _ANN}, stored)
    assert (names.of(0), names.of(1)) == ("Ann", "B")
    names.recognise({1: _ANN}, stored)
    assert (names.of(0), names.of(1)) == ("Ann", "B")


def test_a_speaker_with_a_settled_name_takes_no_other_one():
    """Ann's voice is rather like Bob's, who speaks as well."""
    names, stored = LiveNames(), _voices(Ann=_ANN, Bob=_BOB)
    ann = _between(_ANN, _BOB, 0.75)
    names.recognise({0: ann}, stored)
    names.settle(0)
    names.recognise({0: ann, 1: _between(_BOB, _CYD, 0.6)}, stored)
    assert (names.of(0), names.of(1)) == ("Ann", "Bob")


def test_of_two_similar_speakers_the_name_goes_to_the_more_similar_one():
    """When the second one is heard the first one loses it."""
    names, stored = LiveNames(), _voices(Ann=_ANN)
    first = _between(_ANN, _BOB, 0.6)
    names.recognise({0: first}, stored)
    assert names.of(0) == "Ann"
    names.recognise({0: first, 1: _ANN}, stored)
    assert (names.of(0), names.of(1)) == ("A", "Ann")


def test_a_voice_whose_name_is_a_letter_is_not_recognised():
    """Another speaker may have that letter: the fortieth is AN."""
    stored = _voices(AN=_ANN, AO=_BOB)
    names = LiveNames()
    names.recognise({0: _ANN, 1: _BOB}, stored)
    assert (names.of(0), names.of(1)) == ("A", "AO")
