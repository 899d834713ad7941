"""Words in every script."""

import tracemalloc
import unicodedata

import pytest
import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from asr_server.text import words
from asr_server.text.words import Boundary, measure

EXAMPLES = [
    ("Hello, world! It's 3.14 (about).", ["Hello,", "world!", "It's", "3.14", "(about)."]),
    ('He said "yes" — twice.', ["He", "said", '"yes" —', "twice."]),
    ("Bonjour ! « Ça va ? » d’accord", ["Bonjour !", "« Ça", "va ? »", "d’accord"]),
    ("„Hallo“ sagte er, »ja«", ["„Hallo“", "sagte", "er,", "»ja«"]),
    ("5 € & 10\u00a0000 % .NET ...wait", ["5", "€", "&", "10\u00a0000", "%", ".NET", "...wait"]),
    ("打开WiFi，好吗？他说“你好”。", ["打", "开", "WiFi，", "好", "吗？", "他", "说", "“你", "好”。"]),
    ('他说"你好"吗', ["他", "说", '"你', '好"', "吗"]),
    ("2024年涨了100%，world好", ["2024", "年", "涨", "了", "100%，", "world", "好"]),
    ("「キャッチャー・ミット」だ。", ["「キャッ", "チャー・", "ミッ", "ト」", "だ。"]),
    ("- Hi, Bo. - Ho! – Well - no… — So", ["- Hi,", "Bo.", "- Ho!", "– Well -", "no…", "— So"]),
    ("วันนี้อากาศดีมาก ๆ ครับ", ["วัน", "นี้", "อากาศ", "ดี", "มาก ๆ", "ครับ"]),
    ("مرحبا، كيف حالك؟ «نعم»", ["مرحبا،", "كيف", "حالك؟", "«نعم»"]),
    ("... !", ["... !"]),
    (" \n ", []),
]
# Bases and marks, letters and punctuation of every script that the model writes, and what is odd.
SIGNS = st.text(
    alphabet="aZé1 ,.!?\"'«»“”„()—…%&  \n\u00a0你好，。「」きゃッー한글ไทยเก่าๆहिन्दीا،؟ب\u0301\u200d😀ĸлж", max_size=40
)


def test_words_are_what_readers_call_so():
    """Spaces part words, unspaced signs are words, punctuation belongs to its side."""
    for text, expected in EXAMPLES:
        assert words.split(text) == expected, (text, expected)


@given(SIGNS | st.text(max_size=40))
def test_words_and_gaps_give_the_text_back(text):
    """Only white space is between words. Marks belong to words. Only the first word may begin with a closing mark."""
    found = words.split(text)
    gaps = words.gaps(text, found)
    assert "".join(gap + word for gap, word in zip(gaps, found, strict=True)) == text.rstrip()
    assert not "".join(gaps).strip()
    assert all(word == word.strip() != "" for word in found)
    assert len(found) <= 1 or all(any(map(_is_said, word)) for word in found)
    assert not any(word[0] in words.CLOSING for word in found[1:])


def _is_said(char):
    # Code points that Unicode has yet to assign are letters where their block says so.
    return unicodedata.category(char) in {"Cn"} or unicodedata.category(char)[0] in "LNSM" or char in "%&@#‰％＆＠＃"


@given(SIGNS)
def test_no_sign_is_torn(text):
    """A combining mark stays with its base, if that is more than a space."""
    borders, offset = {0}, 0
    for cluster in wcwidth.iter_graphemes(text):
        borders |= {offset + 1} if cluster[0].isspace() else set()
        offset += len(cluster)
        borders.add(offset)
    position = 0
    found = words.split(text)
    for gap, word in zip(words.gaps(text, found), found, strict=True):
        assert position + len(gap) in borders
        position += len(gap) + len(word)


def test_a_word_that_is_not_there_gets_the_usual_joint():
    """Words that someone else has changed still have gaps, as their script is written."""
    assert words.gaps("one two", ["one", "TWO"]) == ["", " "]
    assert words.gaps("你好", ["你", "他"]) == ["", ""]


def test_columns_are_counted_as_they_are_shown():
    widths = {"abc": (3, 0), "你好": (4, 2), "e\u0301": (1, 0), "한글 x": (6, 2), "กำลัง": (4, 0)}
    assert {text: measure(text) for text in widths} == widths


@pytest.mark.parametrize("function", [words.measure, words.boundary_after, words.syllables])
def test_nothing_is_kept_of_a_long_word(function):
    """A caller chooses how long a word is, and how many of them are sent."""
    tracemalloc.start()
    try:
        for number in range(10):
            function(f"{number}{'ä' * 100_000}")
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_phrases_end_where_readers_pause():
    """Japanese, Thai and Chinese have a model each. Others may be broken anywhere."""
    cases = [
        ["今日は", "天気が", "いいですね。"],
        ["วัน", "นี้", "อากาศ", "ดี"],
        ["今天", "天气", "很", "好，", "我们", "去", "北京", "大学"],
        [*"ខ្មែរ"],
    ]
    for parts in cases:
        ends = {sum(map(len, parts[: i + 1])) for i in range(len(parts))}
        assert words.phrase_ends("".join(parts)) == ends, parts


# Years, times and sums end a sentence like any word.
FIGURES = ["2024.", "10:30.", "1,50.", "100.", "3.5.", "3!"]
SENTENCES = ["end.", 'end!"', "了。」", "है।", "؟نعم؟", "what?)", "so…", "ｿｳ｡", "ነው።", "ហើយ។", "တယ်။", "է։"]
BOUNDARIES = {
    Boundary.SENTENCE: [*SENTENCES, *FIGURES],
    Boundary.CLAUSE: ["one,", "two;", "三，", "، نعم،", "well —", "ｿｳ､", "ነው፣", "တယ်၊"],
    # Points inside figures and after initials end nothing; after a small number nobody knows: "am 3. Mai".
    Boundary.NONE: ["", "word", "3.14", "J.", "U.S.", "p.m.", "don't", "ไทย", "5%", "3.", "31."],
    Boundary.TIED: ["Dr.", "(Mr.", "St."],
}
ENDS = ["Yes.", "Who?", 'He said "no!"', "你好。", "什么？", "مرحبا؟", "नमस्ते।", "Well… ", "（好。）"]
NO_ENDS = ["", " ", "turn on", "Yes. And", "one,", "你好，", "3.5 metres", "well -"]


def test_the_boundary_after_a_word_follows_from_its_punctuation():
    """The marks of all scripts count, also in closing quotes. Years, times and sums end a sentence like any word."""
    for boundary, written in BOUNDARIES.items():
        for word in written:
            assert words.boundary_after(word) is boundary, word


def test_a_mark_at_the_end_of_a_text_ends_a_sentence():
    assert [text for text in ENDS if not words.ends_sentence(text)] == []
    assert [text for text in NO_ENDS if words.ends_sentence(text)] == []


def test_signs_are_worth_what_they_write():
    weights = {"你": 1, "안녕": 2, "banana": 2, "नमस्ते": 3, "ดี": 0.5, "كتاب": 2, "42": 3, "€": 2, "你，": 1.5}
    assert {word: words.syllables(word) for word in weights} == pytest.approx(weights)
    assert [words.syllables(word, "Japanese") for word in ("今", "きゃ")] == [1.5, 1]
    assert [words.syllables(word, "Vietnamese") for word in ("người", "người,")] == [1, 1.5]
