"""Sentences of a text, whole and as it arrives."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr_server.text.sentences import MAX_CHARACTERS, SentenceStream, sentences

# Between bars, the sentences.
EXAMPLES = {
    "en": [
        "Dr. Smith called at 3 p.m. to confirm.",
        "It is 3 p.m.|He left.|Call Mr. J. Smith.|See Fig. 3 of the U.S. Constitution, etc.",
        "No.|Yes!|Really?|It costs $3.50, i.e. 3 and a half.|Wow...|Well... maybe.",
        '"Is it?" he asked.|He said "no."|(It was late.)|We left!',
        "Read v1.2.3 on www.Example.Com.|5 people did.",
        "1. Do this.|2. Do that.|A. Or this.",
    ],
    "de": [
        "Am 3. Mai kam Dr. Müller z. B. aus der 2. Etage.|Es war, d. h. blieb, kalt.",
        "»Ja.«|Er ging.|»Gut«, sagte sie.|„Nein.“|Schluss!",
    ],
    "fr": ["« Ça va ? » dit-il.|Voici M. Dupont et Mme. Roux.|Bonjour !|Oui."],
    "es": ["¿Qué?|¡Hola!|El Sr. García vive en EE. UU. desde ayer.|Bien."],
    "it": ["Il Sig. Rossi è qui.|Perché?|Così."],
    "pt": ["O Sr. Silva veio.|Tudo bem?|Não."],
    "ru": ["Привет, мир!|А. С. Пушкин жил в г. Москва, т. е. здесь.|Да."],
    "zh": ["你好。|今天涨了3.5元！|是吗？|“好。”|他说…|对吗?|对。"],
    "ja": ["今日は。|元気ですか？|「はい。」|終わり"],
    "ko": ["안녕하세요.|3.5는 좋네요!|그래요?"],
    "hi": ["नमस्ते।|यह 3.5 है।|ठीक?|हाँ।"],
    "ar": ["مرحبا.|كيف حالك؟|نعم، 3.5."],
    "th": ["สวัสดีครับ วันนี้อากาศดี ใช่ไหม?|ใช่"],
}
UNSPACED = {"zh", "ja"}
WORDS = [
    "x" * 120,
    "é́",
    *["Dr", "p.m", "z", "M", "3", "10", "No", "Mai", "yes", "Word", "好", "か", "한글", "नम", "ไทย", "ب"],
]
MARKS = ["...", *'.!?…。？।؟,、:;"“”»«()-–']
ODD = ["\ud83d", "\ude00", "😀", "👩‍👩‍👧", "\u0301", "\u200b", "\u2028", "\x00", "१", "٣", "1) ", "- ", "# ", "_"]
BLANKS = [" ", "  ", "\n", "\n\n", "\r\n", "\r", "\t", "\xa0", "\u3000"]
TEXTS = st.lists(st.sampled_from(WORDS + MARKS + BLANKS * 3 + ODD), max_size=60).map("".join) | st.text(max_size=60)
LANGUAGES = st.sampled_from([*EXAMPLES, "xx", "pt-BR", "ZH_cn", ""])


def _texts(text, language="en"):
    return [sentence.text for sentence in sentences(text, language)]


def _spoken(text):
    return [char for char in text if char.isalnum()]


@pytest.mark.parametrize("language", EXAMPLES)
def test_sentences_of_every_script(language):
    """Abbreviations, initials, ordinals, numbers and quotes do not end a sentence."""
    for joined in EXAMPLES[language]:
        expected = joined.split("|")
        assert _texts(("" if language in UNSPACED else " ").join(expected), language) == expected


def test_paragraphs_and_list_items_end_sentences_and_wrapped_lines_do_not():
    """Paragraphs need no end mark. A short line before a capital is a heading."""
    text = (
        "A heading\n"
        "|These words, as in many letters, are wrapped by a mail program, also before\n"
        "Names.| What was written in that letter and in the list of names:\n"
        "|The list\n|- one\n|- two, which has so many words that they might have been wrapped here\n"
        "|Next\n|1. three\n   goes on\n\n|lower\r\n\r\n|End"
    )
    assert _texts(text.replace("|", "")) == [part.strip() for part in text.split("|")]


def test_what_nobody_says_is_no_sentence():
    """Neither dots nor pictures, and dots do not begin one."""
    assert _texts("...") == _texts("😀 !\n\n—\n") == _texts("") == []
    assert _texts("... and so on. ... !! Yes") == ["... and so on. ... !!", "Yes"]


def test_a_long_sentence_is_cut_at_a_clause_or_a_blank_or_between_graphemes():
    """The cut is chosen in this order, in the second half of the most that a sentence may have."""
    assert _texts("one two, " + "three " * 40 + "four, " + "five " * 60)[0].endswith(" four,")
    assert [len(text) for text in _texts("word " * 100)] == [399, 99]
    assert _texts("数据，" * 200, "zh")[0].endswith("，")
    assert len(_texts("a" + "\ud83d\ude00" * 200)[0]) == 399  # a pair of surrogates
    assert len(_texts("a" + "👩‍👩‍👧" * 100)[0]) % 5 == 1


@given(TEXTS | TEXTS.map(lambda text: text * 40), LANGUAGES)
def test_nothing_is_lost_or_doubled_or_too_long(text, language):
    """Whatever the text: the sentences are parts of it, in order, with all its letters and digits."""
    found = sentences(text, language)
    assert all(text[s.start : s.end] == s.text == s.text.strip() for s in found)
    assert all(0 < len(s.text) <= MAX_CHARACTERS and _spoken(s.text) for s in found)
    assert all(a.end <= b.start for a, b in pairwise(found))
    assert _spoken("".join(s.text for s in found)) == _spoken(text)


@example("word, " * 60 + "ww " + "w " * 13 + "at 3 p.m. Helen", "en", [1])
@example("It is 3.5 \ud83d\ude00 now!\r\nYes", "en", [1])
@given(TEXTS | TEXTS.map(lambda text: text * 40), LANGUAGES, st.just([1]) | st.lists(st.integers(1, 500), min_size=1))
def test_a_stream_has_the_sentences_of_the_whole(text, language, sizes):
    """However it is cut into pieces; and no more than the longest sentence waits."""
    stream, found, at = SentenceStream(language), [], 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        found += stream.push(text[at : at + size])
        assert stream.waiting_characters <= MAX_CHARACTERS
        at += size
    assert found + stream.flush() == _texts(text, language)
    assert stream.flush() == []


@pytest.mark.parametrize(
    ("language", "pieces", "expected"),
    [
        ("en", ["Hel", "lo.", " ", "H", "ow are"], [[], [], [], ["Hello."], []]),
        ("en", ["Dr.", " Smith", " came at 3 p.m.", " The", " end"], [[], [], [], [], ["Dr. Smith came at 3 p.m."]]),
        ("en", ["A title\n", "\n", "Text"], [[], ["A title"], []]),
        ("en", ["- one\n", "- t", "wo"], [[], ["- one"], []]),
        ("zh", ["你好。", "今"], [[], ["你好。"]]),
        ("en", ["word " * 80, "w"], [[], ["word " * 79 + "word"]]),
    ],
)
def test_a_sentence_comes_as_soon_as_it_is_over(language, pieces, expected):
    stream = SentenceStream(language)
    assert [stream.push(piece) for piece in pieces] == expected


# A run of one character see text_functions_test.
@pytest.mark.parametrize("part", ["Dr. ", "a. B. ", "你好。", "a\n", " a" + " " * 399, "👩‍👩‍👧"])
def test_the_time_grows_with_the_length_alone(part):
    """A text that would take minutes in quadratic time, which is longer than the limit of a test."""
    sentences(part * (400_000 // len(part)), "en")


def test_the_length_of_a_line_is_that_of_all_its_sentences():
    """A long line is wrapped text, which goes on in the next; a short one ends before a capital letter."""
    long = "One two three four five six. Seven eight nine ten. We went to\nBerlin today."
    assert _texts(long)[-1] == "We went to\nBerlin today."
    short = "Seven eight. We went to\nBerlin today."
    assert _texts(short)[-1] == "Berlin today."


def test_a_text_that_was_flushed_leaves_nothing_to_the_next():
    """Neither its line nor its list."""
    for before in ("a " * 30, "- an item of a list"):
        used, fresh = SentenceStream("en"), SentenceStream("en")
        used.push(before)
        used.flush()
        for text in ("We went to\nBerlin today. It", "A much longer line that was wrapped at its end in\nBerlin. It"):
            assert [*used.push(text), *used.flush()] == [*fresh.push(text), *fresh.flush()]
