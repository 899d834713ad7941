"""Documents: their texts and bounds, Markdown, and DOCX, read back."""

import io
import re
import unicodedata
import zipfile

import docx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asr_server.core.conftest import raises
from asr_server.core.errors import DeadlineExceeded
from asr_server.core.transcript import Segment, Transcript
from asr_server.features.documents.document import Document, DocumentPart, clean, markdown
from asr_server.features.documents.document import docx as docx_file
from asr_server.features.documents.route import write_transcript
from asr_server.recordings.requests import ResponseFormat

ODD = "a) \\ <w:t>&amp;]]> <?xml?> _x0041_"


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


def _markdown(*parts, **fields):
    return markdown(Document(parts, **fields)).decode()


@pytest.mark.parametrize("text", ["*a*", "_a_", "`a`", "![a](b)", "<b>a</b>", "a | b", "~~a~~", "&amp;", "\\*a", "$a$"])
def test_no_text_is_markup(text):
    """Each of its marks has a backslash before it, and without these it is the text."""
    written = _markdown(DocumentPart(0, text, text, text), title=text, facts=text, note=text)
    lines = [line for line in written.splitlines() if line]
    bare = [re.sub(r"\\(.)", "", line) for line in lines]
    assert not re.search(r"[\[\]<`~|&$]", "".join(bare).replace("> ", "", 1))
    plain = [re.sub(r"\\(.)", r"\1", line) for line in lines]
    assert plain == [f"# {text}", text, f"**0:00 {text}** {text}", f"> {text}", f"*{text}*"]


@pytest.mark.parametrize("text", ["# a", "+ a", "12) a", "---", "==="])
def test_no_line_opens_a_block(text):
    line = _markdown(facts=text).strip()
    assert re.match(r"\\[#+=-]|\d+\\[.)]", line)
    assert line.replace("\\", "") == text


def _word(*parts, **fields):
    return docx.Document(io.BytesIO(docx_file(Document(parts, **fields))))


def test_docx_has_every_text_in_order():
    parts = DocumentPart(5_000, "Ann", "Yes."), DocumentPart(3_723_900, "", "No.")
    file = _word(*parts, title="Talk", facts="2026", note="Cut off.")
    assert [one.text for one in file.paragraphs] == ["Talk", "2026", "0:05  Ann: Yes.", "1:02:03  No.", "Cut off."]
    assert file.paragraphs[0].style.name == "Heading 1"
    assert (file.core_properties.title, file.core_properties.author) == ("Talk", "")


def test_docx_has_translations_next_to_the_text():
    (row,) = _word(DocumentPart(0, "", "Yes.", "Ja.")).tables[0].rows
    assert [cell.text for cell in row.cells] == ["0:00  Yes.", "Ja."]


def test_docx_marks_texts_that_are_written_from_right_to_left():
    """The first letter of each decides."""
    content = docx_file(Document((DocumentPart(0, "", "123 مرحبا hello"), DocumentPart(0, "", "hello مرحبا"))))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        xml = archive.read("word/document.xml").decode()
    assert xml.count("<w:bidi/>") == 1
    assert "<w:rtl/>" in xml


@given(st.text(max_size=40).map(clean))
@example(ODD)
@settings(max_examples=25)
def test_docx_holds_any_text(text):
    file = _word(DocumentPart(0, text, text), title=text)
    assert file.paragraphs[-1].text == f"0:00  {text}: {text}" if text else "0:00  "


async def _written(words, limit_s):
    text = "word " * words
    transcript = Transcript(text, "English", 1_000, (Segment(0, 1_000, text, "English", (), 0.0, 0.0),))
    await write_transcript(transcript, ResponseFormat.DOCX, limit_s)


async def test_a_transcript_that_is_too_long_is_refused():
    with raises("invalid_value", match="1_000_000 characters"):
        await _written(200_001, 60.0)


async def test_no_caller_waits_longer_than_its_limit():
    with pytest.raises(DeadlineExceeded, match="within 0 s"):
        await _written(150_000, 0.001)
