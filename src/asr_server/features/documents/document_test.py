"""Documents: their texts, and Markdown."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr_server.features.documents.document import Document, DocumentPart, clean, is_right_to_left, markdown


@given(st.text())
def test_a_clean_text_is_one_line_that_xml_can_hold(text):
    found = clean(text)
    assert len(found.splitlines()) <= 1
    assert found == found.strip()
    assert not {unicodedata.category(char) for char in found} & {"Cc", "Cs", "Co", "Cn"}
    assert clean(found) == found


def test_cleaning_keeps_what_scripts_need():
    """Persian joins letters with U+200C, and French has its own blank before a mark."""
    assert clean("می\u200cروم\n\nBonjour\u00a0!\u202e") == "می\u200cروم Bonjour\u00a0!"


@pytest.mark.parametrize(("ms", "shown"), [(0, "0:00"), (65_900, "1:05"), (3_723_000, "1:02:03")])
def test_times_are_as_players_show_them(ms, shown):
    assert DocumentPart(ms, "", "").clock == shown


def test_the_first_letter_gives_the_direction():
    assert is_right_to_left("123 مرحبا hello")
    assert is_right_to_left("«שלום»")
    assert not is_right_to_left("hello مرحبا")
    assert not is_right_to_left("123")


def _markdown(*parts, **fields):
    return markdown(Document(parts, **fields)).decode()


def test_markdown_has_a_block_for_each_paragraph():
    """The title, the facts and the note stand around the paragraphs, and a translation is a quotation."""
    parts = DocumentPart(5_000, "Ann", "Yes.", "Ja."), DocumentPart(70_000, "", "No.")
    assert _markdown(*parts, title="Talk", facts="2026", note="Cut off.") == (
        "# Talk\n\n2026\n\n**0:05 Ann** Yes.\n\n> Ja.\n\n**1:10** No.\n\n*Cut off.*\n"
    )
    assert _markdown() == ""


@pytest.mark.parametrize(
    "text",
    ["*a*", "_a_", "`a`", "[a](b)", "![a](b)", "<b>a</b>", "<!-- a", "a | b", "~~a~~", "&amp;", "\\*a", "$a$"],
)
def test_no_text_is_markup(text):
    """Each of its marks has a backslash before it, and without these it is the text."""
    written = _markdown(DocumentPart(0, text, text, text), title=text, facts=text, note=text)
    lines = [line for line in written.splitlines() if line]
    bare = [re.sub(r"\\(.)", "", line) for line in lines]
    assert not re.search(r"[\[\]<`~|&$]", "".join(bare).replace("> ", "", 1))
    plain = [re.sub(r"\\(.)", r"\1", line) for line in lines]
    assert plain == [f"# {text}", text, f"**0:00 {text}** {text}", f"> {text}", f"*{text}*"]


@pytest.mark.parametrize("text", ["# a", "- a", "+ a", "1. a", "12) a", "---", "==="])
def test_no_line_opens_a_block(text):
    """Where a text begins a line, its first mark is escaped."""
    line = _markdown(facts=text).strip()
    assert re.match(r"\\[#+=-]|\d+\\[.)]", line)
    assert line.replace("\\", "") == text
