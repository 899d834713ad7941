"""Words that were not heard: which are tried, and which of them have been said."""

from asr_server.features.alignments.matching import SpanText
from asr_server.features.alignments.unheard import joined, runs, said

GIVEN = ["a", "one", "two", "b", "c", "three", "four", "five", "d"]
FIRST, SECOND = (
    SpanText(0, (("one", 1), ("two", 2))),
    SpanText(2, (("so", None), ("three", 5), ("four", 6), ("five", 7))),
)


def test_runs_belong_to_the_spans_next_to_them():
    """Those between two spans to both: either may have them. A passage of more than three words belongs to none."""
    assert runs(len(GIVEN), [FIRST, SECOND]) == {
        0: [range(0, 1), range(3, 5)],
        2: [range(3, 5), range(8, 9)],
    }
    assert runs(len(GIVEN) + 3, [FIRST]) == {0: [range(0, 1)]}


def test_words_join_the_text_after_the_word_before_them():
    """Or before the first, where the text has none before them; what else was heard stays where it is."""
    whole = joined(FIRST, GIVEN, [range(0, 1), range(3, 5)])
    assert " ".join(word for word, _ in whole.words) == "a one two b c"
    whole = joined(SECOND, GIVEN, [range(3, 5), range(8, 9)])
    assert " ".join(word for word, _ in whole.words) == "so b c three four five d"
    assert [number for _, number in whole.words] == [None, 3, 4, 5, 6, 7, 8]
    assert joined(FIRST, GIVEN, []) == FIRST


def test_words_have_been_said_if_they_have_time_to_be_said():
    """Only sound counts: in a pause nothing is said."""
    added = [range(0, 1), range(3, 5)]
    times = {0: (0, 300), 3: (2_000, 2_040), 4: (2_040, 2_100)}
    assert said(added, times, GIVEN, [(0, 3_000)], "English") == [range(0, 1)]
    assert said(added, {**times, 4: (2_040, 2_400)}, GIVEN, [(0, 3_000)], "English") == added
    assert said(added, {**times, 4: (2_040, 2_400)}, GIVEN, [(0, 300), (2_350, 3_000)], "English") == [range(0, 1)]
