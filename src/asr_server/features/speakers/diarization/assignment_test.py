"""The assignment of words to speakers."""

import pytest

from asr_server.core.transcript import TimeSource, Word
from asr_server.features.speakers.diarization import assignment
from asr_server.features.speakers.diarization.turns import Turn


def words(*timed):
    """Return words, each given as (text, start, end) in milliseconds."""
    return [Word(text, start, end, TimeSource.ALIGNED) for text, start, end in timed]


def sentence(text, *, word_ms=300, start_ms=0):
    """Words without a pause between them."""
    timed = enumerate(text.split())
    return words(*((word, start_ms + place * word_ms, start_ms + (place + 1) * word_ms) for place, word in timed))


def assigned(spoken, *turns):
    """The speakers as digits. Each turn as (speaker, start, end)."""
    return "".join(str(speaker) for speaker in assignment.speakers(spoken, [Turn(*turn) for turn in turns]))


QUESTION, SPEECH = sentence("Are you there? Yes I am."), sentence("are you there") + sentence("yes i am", start_ms=1200)
YES = words(("so", 0, 300), ("yes", 700, 1000), ("so", 1400, 1700))
LONG = sentence("so we went there yesterday evening and stayed for hours", word_ms=500)


@pytest.mark.parametrize(
    ("spoken", "turns", "expected"),
    [
        # The speaker changes after the sentence, or in a pause, if the turns change a little before or after it.
        *((QUESTION, [(0, 0, ms), (1, ms, 1800)], "000111") for ms in (650, 900, 1150)),
        *((SPEECH, [(0, 0, ms), (1, ms, 2100)], "000111") for ms in (800, 1050, 1300)),
        (YES, [(0, 0, 300), (1, 700, 1000), (0, 1400, 1700)], "010"),
        (sentence("so, yes, so"), [(0, 0, 300), (2, 300, 600), (0, 600, 900)], "000"),
        # The point after a title ends no sentence, and a longer turn does not tear them apart.
        (sentence("Ask Dr. Who. I did."), [(0, 0, 500), (1, 500, 1500)], "00011"),
        # An answer of one word within a sentence is long enough to be no error of times, or it is not.
        (LONG, [(0, 0, 2000), (1, 2000, 3000), (0, 3000, 5000)], "0000110000"),
        (LONG, [(0, 0, 2000), (1, 2000, 2400), (0, 2400, 5000)], "0000000000"),
        # Words outside of all turns go to the nearest.
        (words(("Hi.", 0, 300), ("Well.", 2000, 2300), ("Bye.", 9000, 9300)), [(0, 400, 1000), (1, 2500, 3000)], "011"),
        # Where both speak, whoever has the sentence keeps it.
        (sentence("We can start, I think. Good."), [(0, 0, 1500), (1, 600, 900), (1, 1500, 1800)], "000001"),
        # Estimated times may be empty.
        (words(("a.", 100, 100), ("b.", 5000, 5000)), [(0, 0, 1000), (1, 4000, 6000)], "01"),
        ([], [(0, 0, 1)], ""),
    ],
)
def test_words_belong_to_whoever_speaks_then(spoken, turns, expected):
    assert assigned(spoken, *turns) == expected


def test_the_first_word_of_a_speaker_is_not_the_last_of_the_other():
    """The aligner has put it before the pause, into the other's turn. A word that is a sentence stays."""
    before, behind = sentence("He went home."), sentence("so we left", start_ms=2000)
    for word, expected in (("And", "0001111"), ("Yes.", "0000111")):
        assert assigned([*before, *words((word, 900, 1200)), *behind], (0, 0, 1200), (1, 2000, 2900)) == expected
