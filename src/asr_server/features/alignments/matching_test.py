"""Words of a given text in what was heard: laws for any texts, and what a reader would say of some."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import TimeSource, Word
from asr_server.features.alignments import matching
from asr_server.features.alignments.matching import divided, joined, left_out, match, said

_WORDS = st.text("ab", min_size=1, max_size=4)
_TEXTS = st.lists(_WORDS, max_size=12)


def _heard(*spans):
    return [(word, number) for number, span in enumerate(spans) for word in divided(span)]


def _scores(text, *spans):
    return dict(zip(words := divided(text), match(words, _heard(*spans)).scores, strict=True))


def _placed(text, *spans):
    """Return for each span the words that are aligned with it; those that were heard and not given are in brackets."""
    texts = match(divided(text), _heard(*spans)).texts
    return {span: " ".join(f"[{w}]" if number is None else w for w, number in text) for span, text in texts.items()}


@given(_TEXTS, st.lists(_TEXTS, max_size=3), st.sampled_from([2, 3, matching.ANCHOR]))
def test_every_word_is_once_in_one_span_or_in_none(text, spans, anchor):
    """Words keep their order within and across spans. Other heard words stay in spans that have given ones."""
    heard = [(word, number) for number, span in enumerate(spans) for word in span]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "ANCHOR", anchor)
        found = match(text, heard)
    assert len(found.scores) == len(text)
    assert all(0 <= score <= 1 for score in found.scores)
    assert list(found.texts) == sorted(found.texts)
    placed = [item for text in found.texts.values() for item in text if item[1] is not None]
    numbers = [number for _, number in placed]
    assert numbers == sorted(set(numbers))
    assert all(word == text[number] for word, number in placed)
    assert all(score < 0.5 for number, score in enumerate(found.scores) if number not in numbers)


def test_scores_count_the_letters_that_differ_are_missing_or_too_many():
    """1 - e / max(n, m), for the word and what was heard in its place; spelling apart, nothing else counts."""
    scores = _scores("The cats sat on Every-body's TABLE", "the cat sad on every bodies tables")
    exact = {"The": 1, "cats": 3 / 4, "sat": 2 / 3, "on": 1, "Every-body's": 9 / 11, "TABLE": 5 / 6}
    assert scores == pytest.approx(exact)
    assert _scores("naïve Straße", "NAIVE STRASSE") == {"naïve": 1, "Straße": 1}
    assert _scores("他们来了", "她们来了") == {"他": 0, "们": 1, "来": 1, "了": 1}


def test_a_passage_that_was_not_read_has_no_place_and_leaves_its_neighbours_alone():
    """Though its words begin and end as those around it do."""
    text = "we came at the big old house at the blue door and knocked"
    assert _placed(text, "we came at the blue door", "and knocked") == {0: "we came at the blue door", 1: "and knocked"}
    assert _scores(text, "we came at the blue door and knocked")["big"] == 0
    assert _scores("cat scat", "cat") == {"cat": 1, "scat": 0}


def test_what_was_heard_and_not_given_stays_in_the_text_of_the_span():
    """So that the aligner finds sound for it; spans without any given word are left out."""
    spans = ("this is a recording of a library", "chapter one it was late", "thank you for listening")
    assert _placed("It was late", *spans) == {1: "[chapter] [one] It was late"}


def test_the_words_of_a_passage_that_was_heard_twice_stay_together():
    """They are placed at the first occurrence, although letters near the second one match too."""
    text = "play that set the volume set my living room lights"
    found = _placed(text, "play that set the volume", "set the volume set my living room lights")
    assert found == {0: "play that set the volume", 1: "[set] [the] [volume] set my living room lights"}


def test_signs_belong_to_the_word_before_them():
    assert divided("♪ Rock & roll – for 5 €!") == ["♪ Rock &", "roll –", "for", "5 €!"]
    assert divided("* * *") == []


def test_a_long_text_is_matched_between_anchors():
    """A chapter of a book, in two readings of it that leave a page out, with a word in ten misheard."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 8))) for _ in range(3_000)]
    book = rng.choices(vocabulary, k=30_000)
    read = [number for number in range(10_000, 15_000) if not 12_000 <= number < 12_400]
    heard = [(book[n] if rng.random() > 0.1 else rng.choice(vocabulary), n // 60) for n in read]
    found = match(book, heard)
    placed = {number: span for span, text in found.texts.items() for _, number in text if number is not None}
    assert sum(placed.get(number) == number // 60 for number in read) > 0.995 * len(read)
    assert len(set(placed).difference(read)) < 20
    assert sum(found.scores) == pytest.approx(0.9 * len(read), rel=0.02)


def test_other_words_take_the_place_of_what_was_heard_there():
    """If it is about as long: names, numbers, and another text from end to end, which is spread over the spans."""
    assert _placed("call eight six five two now", "call 8652 now") == {0: "call eight six five two now"}
    assert _placed("he met Nietzsche today", "he met peter today") == {0: "he met Nietzsche today"}
    assert _placed("zwei und drei sind fünf", "two plus three", "makes five") == {0: "zwei und drei", 1: "sind fünf"}
    found = _placed("he met Xi today", "he met somebody that nobody knows today")
    assert found == {0: "he met [somebody] [that] [nobody] [knows] today"}


def test_texts_are_compared_in_a_table_of_bounded_size(monkeypatch):
    """Nothing agrees where the table would be larger: with half an hour of another text."""
    assert _scores("tables", "rates")["tables"] > 0
    monkeypatch.setattr(matching, "MOST_PAIRS", 41)
    assert _scores("tables", "rates")["tables"] == 0
    assert _scores("table", "rates")["table"] > 0


GIVEN = ["a", "one", "two", "b", "c", "three", "four", "five", "d"]
FIRST, SECOND = (("one", 1), ("two", 2)), (("so", None), ("three", 5), ("four", 6), ("five", 7))


def test_runs_belong_to_the_spans_next_to_them():
    """Words between two spans belong to both: either may have them. More than three words have no span."""
    both = {0: [range(0, 1), range(3, 5)], 2: [range(3, 5), range(8, 9)]}
    assert left_out(len(GIVEN), {0: FIRST, 2: SECOND}) == both
    assert left_out(len(GIVEN) + 3, {0: FIRST}) == {0: [range(0, 1)]}


def test_words_join_the_text_after_the_word_before_them():
    """Or before the first, where the text has none before them; what else was heard stays where it is."""
    assert " ".join(word for word, _ in joined(FIRST, GIVEN, [range(0, 1), range(3, 5)])) == "a one two b c"
    found, numbers = zip(*joined(SECOND, GIVEN, [range(3, 5), range(8, 9)]), strict=True)
    assert " ".join(found) == "so b c three four five d"
    assert numbers == (None, 3, 4, 5, 6, 7, 8)


def test_words_have_been_said_if_they_have_time_to_be_said():
    """Only sound counts: in a pause nothing is said."""
    added = [range(0, 1), range(3, 5)]

    def kept(end_ms, *speech):
        times = {0: (0, 300), 3: (2_000, 2_040), 4: (2_040, end_ms)}
        words = {number: Word(GIVEN[number], *time, TimeSource.ALIGNED) for number, time in times.items()}
        return said(added, words, GIVEN, speech, "English")

    assert kept(2_100, (0, 3_000)) == [range(0, 1)]
    assert kept(2_400, (0, 3_000)) == added
    assert kept(2_400, (0, 300), (2_350, 3_000)) == [range(0, 1)]
