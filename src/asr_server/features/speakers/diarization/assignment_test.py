"""The assignment of words to speakers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_words_belong_to_whoever_speaks_then():
    assert assigned(sentence("Are you there? Yes, I am."), (0, 0, 900), (1, 900, 1800)) == "000111"


@pytest.mark.parametrize("early_ms", [-250, -150, 0, 150, 250])
def test_the_speaker_changes_after_the_sentence(early_ms):
    """The turns change a little before or after it."""
    border_ms = 900 + early_ms
    spoken = sentence("Are you there? Yes I am.")
    assert assigned(spoken, (0, 0, border_ms), (1, border_ms, 1800)) == "000111"


@pytest.mark.parametrize("early_ms", [-250, 0, 250])
def test_the_speaker_changes_at_a_pause(early_ms):
    """The pause counts also in speech without punctuation."""
    border_ms = 1050 + early_ms
    spoken = sentence("are you there") + sentence("yes i am", start_ms=1200)
    assert assigned(spoken, (0, 0, border_ms), (1, border_ms, 2100)) == "000111"


def test_the_first_word_of_a_speaker_is_not_the_last_of_the_other():
    """The aligner has put it before the pause, into the other's turn. A word that is a sentence stays."""
    before = sentence("He went home.")
    behind = sentence("so we left", start_ms=2000)
    assert assigned([*before, *words(("And", 900, 1200)), *behind], (0, 0, 1200), (1, 2000, 2900)) == "0001111"
    assert assigned([*before, *words(("Yes.", 900, 1200)), *behind], (0, 0, 1200), (1, 2000, 2900)) == "0000111"


def test_a_title_stays_with_its_name():
    """The point after it ends no sentence, and a longer turn does not tear them apart."""
    spoken = sentence("Ask Dr. Who. I did.")
    assert assigned(spoken, (0, 0, 500), (1, 500, 1500)) == "00011"


def test_an_answer_of_one_word_inside_a_sentence_is_heard():
    """The answer is long enough to be no error of times."""
    spoken = sentence("so we went there yesterday evening and stayed for hours", word_ms=500)
    assert assigned(spoken, (0, 0, 2000), (1, 2000, 3000), (0, 3000, 5000)) == "0000110000"
    assert assigned(spoken, (0, 0, 2000), (1, 2000, 2400), (0, 2400, 5000)) == "0000000000"


def test_words_outside_of_all_turns_go_to_the_nearest():
    spoken = words(("Hello.", 0, 300), ("Well.", 2000, 2300), ("Bye.", 9000, 9300))
    assert assigned(spoken, (0, 400, 1000), (1, 2500, 3000)) == "011"


def test_where_both_speak_whoever_has_the_sentence_keeps_it():
    """The other's turn inside it takes no word away."""
    spoken = sentence("We can start now, I think. Good.", word_ms=400)
    assert assigned(spoken, (0, 0, 2400), (1, 800, 1600), (1, 2400, 2800)) == "0000001"


def test_words_without_length_and_without_words():
    """Estimated times may be empty."""
    assert assigned(words(("a.", 100, 100), ("b.", 5000, 5000)), (0, 0, 1000), (1, 4000, 6000)) == "01"
    assert assigned([], (0, 0, 1)) == ""


TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4000), st.integers(1, 1500)).map(
        lambda t: Turn(t[0], t[1], t[1] + t[2])
    ),
    min_size=1,
    max_size=8,
)
WORDS = st.lists(
    st.tuples(st.sampled_from(["so", "yes,", "no.", "Dr."]), st.integers(0, 500), st.integers(0, 600)),
    min_size=1,
    max_size=6,
)


@given(WORDS, TURNS)
def test_no_other_choice_is_cheaper(timed, turns):
    """The cost of all ways to give words to speakers is compared: time outside of their turns, and changes between
    them."""
    spoken, now_ms = [], 0
    for text, pause_ms, length_ms in timed:
        spoken += words((text, now_ms + pause_ms, now_ms + pause_ms + length_ms))
        now_ms += pause_ms + length_ms

    def outside_ms(word, speaker):
        own = [turn for turn in turns if turn.speaker == speaker]
        times = {ms for turn in own for ms in range(max(turn.start_ms, word.start_ms), min(turn.end_ms, word.end_ms))}
        far_ms = min((max(0, turn.start_ms - word.end_ms, word.start_ms - turn.end_ms) for turn in own), default=2000)
        return word.end_ms - word.start_ms - len(times) + min(far_ms, 2000)

    count = max(turn.speaker for turn in turns) + 1
    costs = [[outside_ms(word, speaker) for speaker in range(count)] for word in spoken]
    changes = [assignment.change_ms(*pair) for pair in itertools.pairwise(spoken)]

    def total(choice):
        changed = sum(cost for cost, (a, b) in zip(changes, itertools.pairwise(choice), strict=True) if a != b)
        return changed + sum(cost[who] for cost, who in zip(costs, choice, strict=True))

    cheapest = min(total(choice) for choice in itertools.product(range(count), repeat=len(spoken)))
    assert total(assignment.cheapest(spoken, turns)) == pytest.approx(cheapest)
