"""Paragraphs of transcripts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.core.transcript import Segment, TimeSource, Word
from asr_server.recordings.render import FULL_CHARS, FULL_MS, MOST_CHARS, MOST_MS, PAUSE_MS, paragraphs
from asr_server.text import scripts, words

# 60 characters.
SENTENCE = "The kitchen faces the garden, so that there is light inside."


def _segment(text, start_ms, *, speaker=None, timed=True, word_ms=200):
    """A segment of words that follow each other."""
    found = words.split(text)
    ends_ms = [start_ms + i * word_ms for i in range(1, len(found) + 1)]
    listed = [Word(word, at - word_ms, at, TimeSource.ALIGNED) for word, at in zip(found, ends_ms, strict=True)]
    end_ms = start_ms + max(1, len(found)) * word_ms
    return Segment(start_ms, end_ms, text, "", (), 0.0, 0.0, words=tuple(listed) if timed else (), speaker=speaker)


def _chain(*texts, pause_ms=500, **more):
    """Segments with pauses between them."""
    found, start_ms = [], 0
    for text in texts:
        found.append(_segment(text, start_ms, **more))
        start_ms = found[-1].end_ms + pause_ms
    return found


def _texts(segments, language="en"):
    return [one.text for one in paragraphs(segments, language)]


def test_a_long_pause_between_two_words_of_a_segment_divides_it():
    """Its number is in both, and the words are counted on."""
    early, late = _segment("one two", 0), _segment("three four.", 5_000)
    whole = Segment(0, late.end_ms, "one two three four.", "", (), 0.0, 0.0, words=early.words + late.words)
    first, second = paragraphs([whole], "en")
    assert [first.text, second.text] == ["one two", "three four."]
    assert [first.last_segment, second.first_segment] == [0, 0]
    assert [first.last_word, second.first_word, second.last_word] == [1, 2, 3]


@pytest.mark.parametrize(("timed", "word_ms", "sentences"), [(True, 100, 10), (False, 100, 10), (True, 500, 3)])
def test_a_full_paragraph_ends_with_its_sentence(timed, word_ms, sentences):
    """Inside a segment too; without times of words, the time of that end is estimated. Slow speech makes short ones."""
    found = paragraphs(_chain(" ".join([SENTENCE] * 30), timed=timed, word_ms=word_ms), "en")
    assert [one.text for one in found] == [" ".join([SENTENCE] * sentences)] * (30 // sentences)
    starts = [one.start_ms // word_ms for one in found]
    assert starts == pytest.approx(range(0, 330, 11 * sentences), abs=2)


def test_slow_speech_without_an_end_of_a_sentence_makes_paragraphs_of_half_a_minute():
    found = paragraphs(_chain(" ".join(["on"] * 200), word_ms=400), "en")
    assert [one.end_ms - one.start_ms for one in found] == [MOST_MS, MOST_MS, 20_000]


def test_the_stop_of_an_abbreviation_ends_no_paragraph():
    text = f"{SENTENCE} " * 10 + "It was Dr. Smith who said so. Then he left."
    assert _texts(_chain(text.replace(SENTENCE, SENTENCE[:-1] + ",")))[0].endswith("said so.")


@pytest.mark.parametrize(
    ("sentence", "language", "times"),
    [("今天天气很好，我们去公园散步。", "zh", 40), ("كان الطقس جميلا اليوم فخرجنا إلى الحديقة؟", "ar", 15)],
)
def test_sentences_of_other_scripts_end_paragraphs(sentence, language, times):
    """Chinese is joined without blanks."""
    found = _texts(_chain(*[sentence] * 3 * times), language)
    assert len(found) >= 2
    assert all(text.endswith(sentence) for text in found)
    assert all(len(text) < FULL_CHARS + len(sentence) + 1 for text in found)
    assert (" " in found[0]) == (language == "ar")


def test_a_text_without_end_marks_ends_at_its_longest_pause():
    """Thai has no end marks."""
    segments = _chain(*["วันนี้อากาศดีมากเราไปเดินเล่นกัน"] * 60, pause_ms=10, word_ms=50)
    first = paragraphs(segments, "th")[0]
    assert FULL_CHARS <= len(first.text) < MOST_CHARS
    later = [s for s in segments if s.start_ms > segments[24].start_ms]
    moved = [*segments[:25], *(_segment(s.text, s.start_ms + 700) for s in later)]
    assert paragraphs(moved, "th")[0].last_segment == 24


def test_words_that_are_not_those_of_the_text_have_no_numbers():
    other = _segment("hello there", 0)
    (found,) = paragraphs([Segment(0, 400, "Hello, there!", "", (), 0.0, 0.0, words=other.words)], "en")
    assert (found.text, found.first_word, found.last_word) == ("Hello, there!", None, None)


_WORDS = st.sampled_from(["one", "two.", "Dr.", "three?", "天气。", "好", "ไปเดินเล่น", "مرحبا؟", "(x)", "3.5", "«ja»"])
_TEXT, _SPEAKER = st.lists(_WORDS, min_size=1, max_size=120).map(" ".join), st.sampled_from([None, "A", "B"])
_SEGMENTS = st.lists(st.tuples(_TEXT, st.integers(0, 3_000), _SPEAKER, st.booleans()), max_size=12)


@given(_SEGMENTS)
def test_paragraphs_hold_the_whole_text_in_order_and_within_its_times(drawn):
    """A paragraph has one speaker, no long pause, and a bounded length. Nothing else starts a new one."""
    segments, start_ms = [], 0
    for text, pause_ms, speaker, timed in drawn:
        segments.append(_segment(text, start_ms + pause_ms, speaker=speaker, timed=timed))
        start_ms = segments[-1].end_ms
    found = paragraphs(segments, "en")
    assert scripts.join(one.text for one in found) == scripts.join(one.text for one in segments)
    for one in found:
        own = segments[one.first_segment : one.last_segment + 1]
        assert {segment.speaker for segment in own} == {one.speaker}
        assert own[0].start_ms <= one.start_ms <= one.end_ms <= own[-1].end_ms
        assert all(b.start_ms - a.end_ms < PAUSE_MS for a, b in pairwise(own))
        assert one.end_ms - one.start_ms <= MOST_MS + 24_000 * (one.first_word is None)
        assert len(one.text) < MOST_CHARS + max(map(len, (segment.text for segment in own)))
    for one, other in pairwise(found):
        assert other.first_segment in (one.last_segment, one.last_segment + 1)
        assert other.start_ms >= one.end_ms
        is_full = len(one.text) >= FULL_CHARS or one.end_ms - one.start_ms >= FULL_MS
        is_parted = other.speaker != one.speaker or other.start_ms - one.end_ms >= PAUSE_MS
        assert is_parted or is_full or other.end_ms - one.start_ms > MOST_MS
