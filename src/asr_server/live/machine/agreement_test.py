"""Which words are committed."""

from dataclasses import replace

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


def _after(*hypotheses, rules=_RULES, step=1_000):
    known = Agreement(rules)
    for place, heard in enumerate(hypotheses):
        known.on_result(heard, place * step)
    return known


def test_one_hypothesis_commits_nothing():
    """Two are the least."""
    assert _after(_heard("a", " b", " c")).committed == ""


def test_what_two_hypotheses_share_is_committed_but_for_the_last_words():
    """The shared beginning, up to the held words."""
    assert _after(_heard("a", " b", " c"), _heard("a", " b", " d", " e")).committed == "a b"


def test_without_an_age_two_hypotheses_are_still_the_least():
    """Agreement needs another that agrees."""
    ageless = CommitRules(held_words=1, age_samples=0, least_probability=0.5)
    assert _after(_heard("a", " b", " c"), rules=ageless).committed == ""
    assert _after(_heard("a", " b", " c"), _heard("a", " b", " c"), rules=ageless).committed == "a b"


def test_a_folded_text_does_not_take_committed_words_back():
    """The text that is shown goes on from what was committed."""
    known = _after(*[_heard("no", " no", " no", " yes")] * 2)
    assert known.committed == "no no no"
    known.on_result(TranscribeResult(1, "no yes", "English", (1,)), 5_000)
    assert known.text == "no no no yes"


def test_young_words_wait():
    """A token that stands for less audio than the age is not committed."""
    assert _after(_heard("a", " b", " c"), _heard("a", " b", " c"), step=999).committed == ""


def test_a_token_that_was_a_guess_has_to_stand_longer():
    """Until then nothing from it on is committed."""
    sure, guess = 0.0, -2.0
    heard = _heard("a", " b", " c", " d", logprobs=(sure, guess, sure, sure))
    assert _after(*[heard] * 3).committed == "a"
    assert _after(*[heard] * 4).committed == "a b c"


def test_what_first_stood_too_late_is_not_committed():
    """What stood before is, also from a later hypothesis."""
    rules = replace(_RULES, latest_samples=999)
    early, late = _heard("a", " b", " c"), _heard("a", " b", " c", " d", " e")
    assert _after(early, late, late, late, rules=rules).committed == "a b c"
    assert _after(early, late, late, late).committed == "a b c d"
    assert _after(_heard(), _heard(), late, late, late, rules=rules).committed == ""


def test_a_commit_ends_with_a_word_and_its_punctuation():
    """No half word, and no comma left behind."""
    assert _after(*[_heard("hel", "lo", ",", " you", " there")] * 2).committed == "hello, you"
    assert _after(_heard("hel", "lo", " x"), _heard("hel", "m", " x")).committed == ""


def test_case_and_punctuation_do_not_make_a_word_young():
    """The words have stood; the spelling that is committed is the present one."""
    assert _after(_heard("a", " b", " c"), _heard("A", " b", ",", " d")).committed == "A b,"
    flips = [_heard("so", mark, " ask", " not", " what") for mark in (",", ".", ",", "")]
    assert _after(*flips, rules=replace(_RULES, age_samples=3_000)).committed == "so ask not"


def test_a_number_waits_for_the_word_behind_it():
    """It may regroup with what follows."""
    assert _after(*[_heard("in", " 20", " c")] * 2).committed == "in"
    assert _after(*[_heard("in", " 20", " years", " c")] * 2).committed == "in 20 years"


def test_a_token_of_punctuation_is_no_guess():
    """Whether there is a comma is uncertain for longer than the word before it."""
    heard = _heard("a", " b", ",", " c", " d", logprobs=(0.0, 0.0, -2.0, 0.0, 0.0))
    assert _after(*[heard] * 2).committed == "a b, c"


def test_characters_of_unspaced_scripts_are_words():
    """Chinese commits character by character, the last held back, and never a broken one."""
    assert _after(*[_heard("你", "好", "世", "界")] * 2).committed == "你好世"
    assert _after(*[_heard("你", "好", "\ufffd", "世")] * 2).committed == "你"
    assert _after(*[_heard(*"你好世界和平")] * 2, rules=replace(_RULES, held_characters=4)).committed == "你好"


def test_tokens_without_text_are_no_commit():
    """The language that the model names first is nothing to show."""
    known = _after(*[_heard("", "", "a")] * 2)
    assert (known.committed, known.committed_ids) == ("", ())


def test_a_text_that_does_not_map_to_its_ids_commits_nothing():
    """Folded repetitions have no offsets."""
    folded = TranscribeResult(1, "a b", "English", (1, 2, 3, 4))
    assert _after(folded, folded).committed == ""


def test_a_text_that_lost_some_of_what_was_committed_keeps_it():
    """What was committed stays, what follows is added."""
    assert following("no no no", TranscribeResult(1, "no yes")) == "no no no yes"
    assert following("one", TranscribeResult(1, "one two")) == "one two"
    assert following("one two", TranscribeResult(1, "one")) == "one two"


def test_a_text_made_apart_goes_on_from_what_was_committed():
    """It may say the committed words otherwise; none is taken back, and none said twice."""
    assert (
        following("turn on the", TranscribeResult(1, "Turn of the kitchen lights", detached=True))
        == "turn on the kitchen lights"
    )
    assert following("turn on the", TranscribeResult(1, "turn on", detached=True)) == "turn on the"


def test_a_word_is_committed_with_the_next_hypothesis_that_has_it_and_a_guess_after_three_seconds():
    """With the default rules, and a hypothesis every 0.45 s as the default settings make them."""
    heard = _heard("a", " b", " c", " d", " e", logprobs=(0.0, 0.0, -2.0, 0.0, 0.0))
    assert [_after(*[heard] * n, rules=CommitRules(), step=7_200).committed for n in (1, 2, 7, 8)] == [
        *("", "a b", "a b"),
        "a b c",
    ]


def test_a_word_does_not_age_while_nothing_is_said():
    """In a pause the model hears the same speech again, and agrees with itself."""
    known, heard = Agreement(_RULES), _heard("a", " b", " c")
    known.on_result(heard, 1_000)
    known.on_result(heard, 9_000, quiet_samples=8_000)
    assert known.committed == ""
    known.on_result(heard, 10_000, quiet_samples=8_000)
    assert known.committed == "a b"


def test_the_last_word_says_how_many_words_stay_open():
    """So many characters where a text ends in Chinese, and so many words where it ends in English."""
    rules = replace(_RULES, held_words=1, held_characters=3)
    assert _after(*[_heard("a", " b", " ", "你", "好", "世", "界")] * 2, rules=rules).committed == "a b 你"
    assert _after(*[_heard("你", "好", " a", " b", " c")] * 2, rules=rules).committed == "你好 a b"
