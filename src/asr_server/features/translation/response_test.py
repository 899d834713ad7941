"""The texts that language models write around and instead of what was asked for, and lines that break no file."""

import json

from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.translation.response import cue_text, one_line, read
from asr_server.subtitle import files
from asr_server.subtitle.cues import Cue

IDS = ("101", "102", "103")
RIGHT = {"101": "eins", "102": "zwei", "103": "drei"}
JSON = json.dumps(RIGHT)
# Text made of the pieces that break files, and of anything else.
BREAKS = ["\n", "\r\n", "\n\n", "\u2028", "\x85", " ", "\x00", "\ufeff", "\ud800"]
TIMES = ["-->", "--", "-", ">", "00:00:01,000", "00:01.500", "7", "WEBVTT", "NOTE"]
MARKS = ["<i>", "<", "i>", "</v>", "{\\an8}", "{", "\\", "}", "&amp;"]
PIECES = st.lists(st.sampled_from(BREAKS + TIMES + MARKS) | st.text(max_size=4)).map("".join)


def test_all_of_a_right_answer_is_found_in_any_dress():
    """Fences, prose, thoughts, wrappers, lists, another order, raw line breaks in strings."""
    cases = [
        JSON,
        f"```json\n{JSON}\n```",
        f"Sure! Here it is:\n\n{JSON}\n\nAnything else? [1] {{x}}",
        f'<think>{{"101": "one"}} hm, 3 < 4</think>\n{JSON}',
        f"the opening tag was cut off by the server </think>{JSON}",
        json.dumps({"translations": RIGHT}),
        json.dumps({"note": "done", "lines": RIGHT}),
        json.dumps([{"id": k, "text": v} for k, v in RIGHT.items()]),
        json.dumps({"lines": [{"line": int(k), "translation": v} for k, v in RIGHT.items()]}),
        '{"103": "drei", "101": "eins", "102": "zwei"}',
        '{"101": " eins\n", "102": "zwei", "103": "drei"}',
        '{"101": "eins", "101": "eins", "102": "zwei", "103": "drei"}',
    ]
    for written in cases:
        assert read(written, IDS) == RIGHT, written


def test_what_may_belong_to_other_lines_is_not_trusted():
    """Numbered anew, merged with the rest moved up, a line too many, no JSON, thoughts without an answer: nothing."""
    cases = [
        "",
        "I cannot help with that.",
        "null",
        "[]",
        "{}",
        "{" * 100_000,
        "[" * 100_000,
        '{"1": "eins", "2": "zwei", "3": "drei"}',
        '{"100": "null", "101": "eins", "102": "zwei"}',
        '{"101": "eins und zwei", "102": "drei"}',
        '{"101": "eins", "102": "zwei", "103": "drei", "104": "vier"}',
        '{"101": "eins", "102": "zwei", "103": null}',
        f"<think>{JSON}",
        "{'101': 'eins'}",
    ]
    for written in cases:
        assert read(written, IDS) == {}, written


def test_a_gap_costs_only_its_own_line():
    """A line left out in the middle, a cut, a contradiction, a number for a text: the others stand."""
    cases = [
        ('{"101": "eins", "103": "drei"}', {"101", "103"}),
        ('{"101": "eins", "102": "zwei", "103": "dr', {"101", "102"}),
        ('```json\n{"101": "eins", "102": "zw', {"101"}),
        ('[{"id": "101", "text": "eins"}, {"id": "102", "text"', {"101"}),
        ('{"101": "eins", "101": "zwei", "102": "zwei", "103": "drei"}', {"102", "103"}),
        ('{"101": "eins", "102": 2, "103": "drei"}', {"101", "103"}),
    ]
    for written, known in cases:
        assert read(written, IDS) == {name: RIGHT[name] for name in known}, (written, known)


def test_a_lone_line_may_be_called_anything():
    """No mistake is possible: there is one line and one text."""
    for written in ['{"101": "eins"}', '{"1": "eins"}', '{"translation": "eins"}', '[{"id": 1, "t": "eins"}]']:
        assert read(written, ("101",)) == {"101": "eins"}, written


def test_a_lone_line_wants_one_whole_text():
    """Bare prose may be an excuse, a cut text is half a line, and of two texts either may be the one."""
    for written in ["eins", '{"101": "ei', '{"1": "eins", "2": "zwei"}']:
        assert read(written, ("101",)) == {}, written


@given(st.text(alphabet='{}[]"\\,: 123abc\n<think>/', max_size=80), st.integers(1, 4))
def test_no_text_whatever_is_an_error_or_an_unasked_id(written, count):
    """Reading never raises, and gives texts for ids that were asked."""
    ids = tuple(str(n) for n in range(1, count + 1))
    found = read(written, ids)
    assert set(found) <= set(ids)
    assert all(isinstance(text, str) for text in found.values())


@given(st.lists(st.text(max_size=6), min_size=2, max_size=6), st.integers(0, 200))
def test_an_answer_cut_anywhere_gives_only_right_texts(texts, cut):
    """Whatever byte a token limit hits, what is read is what stood there."""
    right = {str(101 + i): text.strip() for i, text in enumerate(texts)}
    found = read(json.dumps(right, ensure_ascii=False)[: cut + 1], tuple(right))
    assert found.items() <= right.items()


def test_a_line_repeated_without_end_is_read_in_one_go():
    """A model in a loop repeats one pair by the ten thousand: comparing each with each would take minutes."""
    assert read("{" + '"101": "eins", ' * 200_000 + '"102": "zwei", "103": "drei"}', IDS) == RIGHT
    assert read("{" + '"101": "eins", ' * 200_000 + '"101": "zwei", "103": "drei"}', IDS) == {"103": "drei"}


def test_what_comes_back_is_only_the_words():
    """Breaks, whole cue heads, headers, tags and arrows go; times of day and bare angle brackets stay."""
    cases = [
        ("Guten Tag", "Guten Tag"),
        ("Guten\nTag\r\n\u2028heute", "Guten Tag heute"),
        ("12\n00:00:01,000 --> 00:00:02,500\nGuten Tag", "Guten Tag"),
        ("00:01.000 --> 00:02.500 align:start line:0\nGuten Tag", "Guten Tag"),
        ("WEBVTT\n\n00:00:01.000 --> 00:00:02.000\nGuten Tag\n\n", "Guten Tag"),
        ("<c>00:01.000</c> --> <i>00:02.000</i>\nGuten Tag", "Guten Tag"),
        ("<i>Guten</i> <v Anna>Tag {\\an8}", "Guten Tag"),
        ("a --> b ---> c", "a → b → c"),
        ("um 12:30 Uhr, 3 < 4 & 5 > 4", "um 12:30 Uhr, 3 < 4 & 5 > 4"),
        ("--<b>>", "→"),
        ("\x00\ufeff\ud800", ""),
    ]
    for answered, line in cases:
        assert cue_text(answered) == line, (answered, line)


@given(PIECES)
def test_a_cleaned_text_is_one_cue_in_every_format(text):
    """The text is exactly one cue in a file between two others: no reader finds a blank line, an arrow or a third
    time."""
    line = cue_text(text)
    assert "-->" not in line
    assert len(line.splitlines()) <= 1
    line.encode()
    cues = [Cue(0, 1000, "one"), Cue(1000, 2000, line or "-"), Cue(2000, 3000, "three")]
    for written in (files.render_srt(cues), files.render_vtt(cues)):
        assert written.count("-->") == 3
        assert len(written.removeprefix("WEBVTT\n\n").split("\n\n")) == 4


@given(PIECES)
def test_cleaning_twice_is_cleaning_once(text):
    """Nothing that cleaning removes is left or made by it."""
    assert cue_text(cue_text(text)) == cue_text(text)


@given(st.text())
def test_one_line_keeps_every_visible_character(text):
    """Gaps are joined and what cannot be written is dropped: letters, digits and signs stay in order."""
    kept = [c for c in text if c.isalnum()]
    assert [c for c in one_line(text) if c.isalnum()] == kept


def test_a_run_without_end_is_cleaned_in_one_go():
    """Models in a loop write blanks or dashes by the ten thousand: by the square that would take minutes."""
    for run in [" ", "\t ", "-", "--\n"]:
        assert cue_text(f"Guten{run * 200_000}Tag").startswith("Guten"), run


def test_markup_nested_without_end_is_cleaned_in_a_few_passes():
    """Each pass takes out one layer: by the square that would take minutes, while nobody else is served."""
    for nested in ["<" * 50_000 + "i>" * 50_000, "<i" * 50_000 + ">" * 50_000, "{\\" * 50_000 + "}" * 50_000]:
        line = cue_text(f"Guten {nested} Tag")
        assert line.startswith("Guten"), nested
        assert "<" not in line, nested
        assert cue_text(line) == line, nested
