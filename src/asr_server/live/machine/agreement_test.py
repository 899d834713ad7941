"""Which words are committed."""

from dataclasses import replace

import pytest

from asr_server.live.machine.agreement import Agreement, CommitRules, following
from asr_server.live.machine.events import TranscribeResult

_RULES = CommitRules(held_words=1, held_characters=1, age_samples=1_000, guess_age_samples=3_000, least_probability=0.5)


def _heard(*tokens, logprobs=None):
    text, offsets = "", []
    for token in tokens:
        text += token
        offsets.append(len(text))
    ids = tuple(hash(token) for token in tokens)
    return TranscribeResult(1, text, "English", ids, tuple(offsets), logprobs or (0.0,) * len(ids))


_ABC = _heard("a", " b", " c")
_LATE = _heard("a", " b", " c", " d", " e")
_AGELESS = CommitRules(held_words=1, age_samples=0, least_probability=0.5)
_EARLY_ONLY = replace(_RULES, latest_samples=999)
_GUESSED = _heard("a", " b", " c", " d", logprobs=(0.0, -2.0, 0.0, 0.0))
_DEFAULT_GUESSED = _heard("a", " b", " c", " d", " e", logprobs=(0.0, 0.0, -2.0, 0.0, 0.0))
_COMMA = _heard("a", " b", ",", " c", " d", logprobs=(0.0, 0.0, -2.0, 0.0, 0.0))
_FLIPS = [_heard("so", mark, " ask", " not", " what") for mark in (",", ".", ",", "")]
_FOLDED = TranscribeResult(1, "a b", "English", (1, 2, 3, 4))
_MIXED = replace(_RULES, held_words=1, held_characters=3)


@pytest.mark.parametrize(
    ("hypotheses", "how", "committed"),
    [
        # Agreement needs two, also if words need no age. The last word stays open.
        ([_ABC], {}, ""),
        ([_ABC], {"rules": _AGELESS}, ""),
        ([_ABC] * 2, {"rules": _AGELESS}, "a b"),
        ([_ABC, _heard("a", " b", " d", " e")], {}, "a b"),
        # A word has to stand for its age; one with an improbable token, and all after it, for longer.
        ([_ABC] * 2, {"step": 999}, ""),
        ([_GUESSED] * 3, {}, "a"),
        ([_GUESSED] * 4, {}, "a b c"),
        # Whether there is a comma is uncertain for longer than the word before it.
        ([_COMMA] * 2, {}, "a b, c"),
        # The default rules, with a hypothesis every 0.45 s, as the default settings make them.
        *(
            ([_DEFAULT_GUESSED] * count, {"rules": CommitRules(), "step": 7_200}, committed)
            for count, committed in ((1, ""), (2, "a b"), (7, "a b"), (8, "a b c"))
        ),
        # What first stood after the latest place is not committed; what stood before is, also from a later hypothesis.
        ([_ABC, _LATE, _LATE, _LATE], {"rules": _EARLY_ONLY}, "a b c"),
        ([_ABC, _LATE, _LATE, _LATE], {}, "a b c d"),
        ([_heard(), _heard(), _LATE, _LATE, _LATE], {"rules": _EARLY_ONLY}, ""),
        # A commit ends with a word and its punctuation.
        ([_heard("hel", "lo", ",", " you", " there")] * 2, {}, "hello, you"),
        ([_heard("hel", "lo", " x"), _heard("hel", "m", " x")], {}, ""),
        # Case and punctuation do not make a word young. The present spelling is committed.
        ([_ABC, _heard("A", " b", ",", " d")], {}, "A b,"),
        (_FLIPS, {"rules": replace(_RULES, age_samples=3_000)}, "so ask not"),
        # A number may regroup with the word behind it.
        ([_heard("in", " 20", " c")] * 2, {}, "in"),
        ([_heard("in", " 20", " years", " c")] * 2, {}, "in 20 years"),
        # Chinese commits character by character, and never a broken one.
        ([_heard("你", "好", "世", "界")] * 2, {}, "你好世"),
        ([_heard("你", "好", "\ufffd", "世")] * 2, {}, "你"),
        ([_heard(*"你好世界和平")] * 2, {"rules": replace(_RULES, held_characters=4)}, "你好"),
        # The last word says if words or characters stay open.
        ([_heard("a", " b", " ", "你", "好", "世", "界")] * 2, {"rules": _MIXED}, "a b 你"),
        ([_heard("你", "好", " a", " b", " c")] * 2, {"rules": _MIXED}, "你好 a b"),
        # A folded text does not map to its ids.
        ([_FOLDED] * 2, {}, ""),
    ],
)
def test_words_are_committed_on_which_hypotheses_agree_for_long_enough(hypotheses, how, committed):
    known = Agreement(how.get("rules", _RULES))
    for place, heard in enumerate(hypotheses):
        known.on_result(heard, end := place * how.get("step", 1_000), end)
    assert known.committed == committed


def test_a_word_does_not_age_while_nothing_is_said():
    """The model hears the same speech again in a pause, and agrees with itself."""
    known = Agreement(_RULES)
    known.on_result(_ABC, 1_000, 1_000)
    known.on_result(_ABC, 9_000, 1_000)
    assert known.committed == ""
    known.on_result(_ABC, 10_000, 2_000)
    assert known.committed == "a b"


@pytest.mark.parametrize(
    ("committed", "text", "detached", "shown"),
    [
        ("no no no", "no yes", False, "no no no yes"),  # a folded text
        ("one", "one two", False, "one two"),
        ("one two", "one", False, "one two"),
        ("turn on the", "Turn of the kitchen lights", True, "turn on the kitchen lights"),  # made apart
        ("turn on the", "turn on", True, "turn on the"),
    ],
)
def test_a_text_goes_on_from_what_was_committed(committed, text, detached, shown):
    """It may say the committed words otherwise; none is taken back, and none said twice."""
    assert following(committed, TranscribeResult(1, text, detached=detached)) == shown
