"""DOCX, read back."""

import io
import zipfile

import docx
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.features.documents.document import Document, DocumentPart, clean
from asr_server.features.documents.document import docx as docx_file

ODD = "a) \\ <w:t>&amp;]]> <?xml?> _x0041_"


def _word(*parts, **fields):
    return docx.Document(io.BytesIO(docx_file(Document(parts, **fields))))


def test_docx_has_every_text_in_order():
    file = _word(
        DocumentPart(5_000, "Ann", "Yes."), DocumentPart(70_000, "", "No."), title="Talk", facts="2026", note="Cut off."
    )
    assert [one.text for one in file.paragraphs] == ["Talk", "2026", "0:05  Ann: Yes.", "1:10  No.", "Cut off."]
    assert file.paragraphs[0].style.name == "Heading 1"
    assert (file.core_properties.title, file.core_properties.author) == ("Talk", "")


def test_docx_has_translations_next_to_the_text():
    file = _word(DocumentPart(0, "", "Yes.", "Ja."), DocumentPart(1_000, "", "No.", "Nein."))
    assert [[cell.text for cell in row.cells] for row in file.tables[0].rows] == [
        ["0:00  Yes.", "Ja."],
        ["0:01  No.", "Nein."],
    ]


def test_docx_marks_texts_that_are_written_from_right_to_left():
    content = docx_file(Document((DocumentPart(0, "", "مرحبا بكم"), DocumentPart(0, "", "Hello."))))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        xml = archive.read("word/document.xml").decode()
    assert xml.count("<w:bidi/>") == 1
    assert "<w:rtl/>" in xml


@given(st.text(max_size=40).map(clean))
@settings(max_examples=25)
def test_docx_holds_any_text(text):
    """It is read as it was written, and no part of it is markup."""
    file = _word(DocumentPart(0, text, text), title=text)
    assert file.paragraphs[-1].text == f"0:00  {text}: {text}" if text else "0:00  "


def test_odd_texts_stay_text():
    """Nothing of them is an element of a DOCX."""
    assert _word(DocumentPart(0, "", ODD)).paragraphs[0].text == f"0:00  {ODD}"
    with zipfile.ZipFile(io.BytesIO(docx_file(Document([DocumentPart(0, "", ODD)])))) as archive:
        assert b"<w:t>&amp;amp;" not in archive.read("word/document.xml")
