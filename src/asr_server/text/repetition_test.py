"""Repetition clean-up."""

import time

from hypothesis import given
from hypothesis import strategies as st

from asr_server.text import repetition

SENTENCE = "thank you very much for watching this video"


def test_a_loop_becomes_one_turn():
    """The text around it stays."""
    cases = [
        ("ha" * 30, "ha"),
        ("no " * 25 + "stop", "no stop"),
        ("好的" * 40, "好的"),
    ]
    for text, clean in cases:
        assert repetition.collapse(text).strip() == clean, (text, clean)


def test_what_people_say_stays():
    """Emphasis, digit strings and a chorus are speech, not loops."""
    for text in [
        "no no no no",
        "zero " * 12 + "one",
        "one two three " * 6,
        " ".join([SENTENCE] * 12),
        "",
        "a",
    ]:
        assert repetition.collapse(text) == text, text


@given(st.text(alphabet="ab c", max_size=60))
def test_short_texts_without_twenty_turns_are_untouched(text):
    """No text too short to hold a loop changes."""
    if len(text) < 20:
        assert repetition.collapse(text) == text


def test_cost_stays_bounded_on_hostile_text():
    """A long text without loops, full of near-repeats, takes about the time that twice its half takes."""

    def cost(n):
        text = " ".join(f"the word {i} is the word" for i in range(n))
        began = time.perf_counter()
        repetition.collapse(text)
        return time.perf_counter() - began

    small = min(cost(200) for _ in range(3))
    assert min(cost(800) for _ in range(3)) < small * 40


def test_a_long_gap_is_no_loop():
    """White space has no unit that could be repeated: the search ends, and the words stay."""
    for gap in [" " * 60, "\n" * 200, " \n\t" * 400]:
        text = f"{SENTENCE}, twice over and more{gap}{SENTENCE} again and again until it is over"
        assert repetition.collapse(text).split() == text.split(), gap
