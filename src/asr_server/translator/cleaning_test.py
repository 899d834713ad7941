"""Lines that cannot break a subtitle file."""

from hypothesis import given
from hypothesis import strategies as st

from asr_server.subtitle import srt, vtt
from asr_server.subtitle.cues import Cue
from asr_server.translator.cleaning import cue_text, one_line

# Text made of the pieces that break files, and of anything else.
BREAKS = ["\n", "\r\n", "\n\n", "\u2028", "\x85", " ", "\x00", "\ufeff", "\ud800"]
TIMES = ["-->", "--", "-", ">", "00:00:01,000", "00:01.500", "7", "WEBVTT", "NOTE"]
MARKS = ["<i>", "<", "i>", "</v>", "{\\an8}", "{", "\\", "}", "&amp;"]
PIECES = st.lists(st.sampled_from(BREAKS + TIMES + MARKS) | st.text(max_size=4)).map("".join)


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
    for written in (srt.render(cues), vtt.render(cues)):
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
