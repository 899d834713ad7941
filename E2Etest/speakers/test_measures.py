"""The measures on cases whose results are known by hand."""

import math

import pytest

from E2Etest.speakers.conversations import Speech, SpokenWord
from E2Etest.speakers.measures import DiarizationError, aligned, diarization_error, speaker_words


def _speech(*parts):
    return [Speech(*part) for part in parts]


TWO = _speech(("a", 0, 10), ("b", 10, 20))


@pytest.mark.parametrize(
    ("reference", "found", "seconds"),
    [
        (TWO, _speech(("x", 0, 10), ("y", 10, 17), ("z", 17, 20)), (20, 0, 0, 3)),
        (TWO, _speech(("x", 0, 9), ("y", 13, 20)), (20, 4, 0, 0)),
        (_speech(("a", 0, 10), ("b", 6, 20)), _speech(("x", 0, 13), ("y", 13, 20)), (24, 4, 0, 3)),
        (TWO, _speech(("x", 0, 8), ("x", 5, 10), ("y", 10, 20)), (20, 0, 0, 0)),
        ([], _speech(("x", 1, 3)), (0, 0, 2, 0)),
    ],
)
def test_seconds_of_diarization_errors(reference, found, seconds):
    """Speech of the reference, missed, false alarms, confused."""
    error = diarization_error(reference, found)
    assert (error.reference_s, error.missed_s, error.false_alarm_s, error.confused_s) == pytest.approx(seconds)


def test_nothing_is_scored_within_the_collar():
    """Of 20 s with four edges at 0, 10, 10 and 20 s, 19 s are left, and of a change that is 2 s late 1.75 s."""
    error = diarization_error(TWO, _speech(("x", 0, 12), ("y", 12, 20)), collar_s=0.25)
    assert (error.reference_s, error.confused_s) == pytest.approx((19.0, 1.75))
    assert diarization_error(TWO, _speech(("x", -0.2, 10.2), ("y", 9.8, 20.2)), collar_s=0.25).rate == 0


def test_the_rate_is_of_the_speech_of_all_recordings_together():
    """A short recording weighs less than a long one; errors without any speech have no finite rate."""
    assert (DiarizationError(90, 1, 2, 3) + DiarizationError(10, 0, 0, 4)).rate == pytest.approx(0.1)
    assert DiarizationError(0, 0, 1, 0).rate == math.inf
    assert DiarizationError(0, 0, 0, 0).rate == 0


def _words(text):
    """`a:one b:two` as words with speakers; `-` is none."""
    parts = [part.split(":") for part in text.split()]
    return [SpokenWord(word, None if speaker == "-" else speaker) for speaker, word in parts]


@pytest.mark.parametrize(
    ("reference", "found", "recognized", "wrong"),
    [
        ("a:one a:two b:three b:four", "x:one x:two x:three y:four", 4, 1),
        ("a:one a:two b:three", "x:one x:too y:three", 2, 0),
        ("a:one a:two b:three", "x:one -:two y:three", 3, 1),
        ("a:one", "", 0, 0),
    ],
)
def test_words_with_the_wrong_speaker(reference, found, recognized, wrong):
    """Recognised words, and those of them that another person is said to have spoken."""
    result = speaker_words(_words(reference), _words(found))
    assert (result.recognized, result.wrong_speaker) == (recognized, wrong)


def test_a_word_is_not_taken_for_one_that_was_said_elsewhere():
    """Of two people who say the same, one is not recognised: the words of the other are still that one's."""
    said = [SpokenWord(word, who, at, at + 1) for who, at in (("a", 0), ("b", 5), ("a", 10)) for word in ("one", "two")]
    heard = [SpokenWord(word, who, at, at + 0.5) for who, at in (("x", 5.2), ("y", 10.2)) for word in ("one", "two")]
    assert aligned(said, heard) == [(2, 0), (3, 1), (4, 2), (5, 3)]
    result = speaker_words(said, heard)
    assert (result.recognized, result.wrong_speaker) == (4, 0)
