"""Loop detection on ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.engine import loops

SENTENCE = "thank you very much for watching this video"


def test_the_budget_follows_the_audio():
    """40 tokens a second, never under 32: no constant that truncates long speech."""
    assert [loops.token_budget(16_000 * seconds) for seconds in (0, 1, 10, 30)] == [32, 40, 400, 1200]


@given(st.lists(st.integers(100, 199), max_size=30), st.lists(st.integers(0, 99), min_size=1, max_size=40))
def test_every_loop_is_found_and_one_turn_is_kept(start, unit):
    """Whatever came before, enough turns of a unit are a loop; what is kept ends within its first two turns."""
    turns = max(6, -(-48 // len(unit))) + 1
    ids = start + unit * turns
    found = loops.loop(ids)
    assert found
    assert len(unit) % found == 0
    keep = loops.without_loop(ids, found)
    assert ids[: len(start)] == ids[:keep][: len(start)]
    assert len(start) < keep <= len(start) + 2 * len(unit)


@pytest.mark.parametrize("ids", [[5] * 40, list(range(30)) * 5, list(range(200))])
def test_what_people_say_is_no_loop(ids):
    """Forty times the same token, or five times the same sentence, may be speech."""
    assert loops.loop(ids) == 0


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("ha" * 30, "ha"),
        ("no " * 25 + "stop", "no stop"),
        ("好的" * 40, "好的"),
        ("ü" * 40, "ü"),
        # Emphasis, digit strings and a chorus are speech, not loops.
        *((text, text) for text in ("no no no no", "zero " * 12 + "one", "one two three " * 6, "", "a")),
        (" ".join([SENTENCE] * 12), " ".join([SENTENCE] * 12)),
        # White space has no unit that could be repeated: the search ends, and the words stay.
        *((SENTENCE + gap + SENTENCE, f"{SENTENCE} {SENTENCE}") for gap in (" " * 60, "\n" * 200, " \n\t" * 400)),
    ],
)
def test_a_loop_in_a_text_becomes_one_turn_and_speech_stays(text, clean):
    """The text around a loop stays too. Every answer is first checked for what may be one."""
    assert (loops.collapse(text) if loops.may_repeat(text) else text).split() == clean.split()
