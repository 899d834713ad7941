"""DOCX and PDF, read back by other code than wrote them where there is any."""

import io
import zipfile

import docx
import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_server.core.errors import UnsupportedValue
from asr_server.features.documents import fonts, pdf, word
from asr_server.features.documents.document import Document, DocumentPart, clean

ODD = "a) Tj ET /JS (x) \\ <w:t>&amp;]]> <?xml?> _x0041_ %PDF"


def _word(*parts, **fields):
    return docx.Document(io.BytesIO(word.write(Document(parts, **fields))))


def _pages(*parts, **fields):
    return pypdf.PdfReader(io.BytesIO(pdf.write(Document(parts, **fields)))).pages


def _pdf(*parts, **fields):
    return " ".join(" ".join(page.extract_text() for page in _pages(*parts, **fields)).split())


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
    xml = _word(DocumentPart(0, "", "مرحبا بكم"), DocumentPart(0, "", "Hello."))._body._body.xml
    assert xml.count("<w:bidi/>") == 1
    assert "<w:rtl/>" in xml


@given(st.text(max_size=40).map(clean))
@settings(max_examples=25)
def test_docx_holds_any_text(text):
    """It is read as it was written, and no part of it is markup."""
    file = _word(DocumentPart(0, text, text), title=text)
    assert file.paragraphs[-1].text == f"0:00  {text}: {text}" if text else "0:00  "


def test_odd_texts_stay_text():
    """Nothing of them is an object of a PDF, or an element of a DOCX."""
    assert _word(DocumentPart(0, "", ODD)).paragraphs[0].text == f"0:00  {ODD}"
    assert ODD in _pdf(DocumentPart(0, "", ODD))
    written = pdf.write(Document([DocumentPart(0, "", ODD)], title=ODD))
    reader = pypdf.PdfReader(io.BytesIO(written))
    assert reader.metadata.title == ODD
    assert not {"/JS", "/AA", "/Names"} & set(reader.trailer["/Root"])
    with zipfile.ZipFile(io.BytesIO(word.write(Document([DocumentPart(0, "", ODD)])))) as archive:
        assert b"<w:t>&amp;amp;" not in archive.read("word/document.xml")


def test_pdf_of_a_western_text_needs_no_font(font_folder):
    """Quotes, dashes and letters of Western Europe are written without one. A long text has several pages."""
    found = _pdf(DocumentPart(5_000, "Zoë", "“Où?” – Straße…", "Ja."), title="Talk", facts="2026", note="Cut off.")
    assert found == "Talk 2026 0:05 Zoë “Où?” – Straße… Ja. Cut off."
    assert len(_pages(*[DocumentPart(0, "", "one two three " * 30)] * 30)) > 3


def test_pdf_takes_the_characters_of_several_fonts(make_font):
    """The one with all of them, where there is one."""
    make_font("NotoSans", "0123456789:. ABCDEFGHIJ" + "Łódź")
    make_font("Thai", "สวัสดีครับ")
    assert _pdf(DocumentPart(0, "", "Łódź"), DocumentPart(1_000, "", "สวัสดี"), DocumentPart(2_000, "", "ครับ")).replace(
        "\u200b", ""
    ) == ("0:00 Łódź 0:01 สวัสดี 0:02 ครับ")
    whole = make_font("Whole", "0123456789:. Łódźสวัสดีครับ")
    fonts._files.cache_clear()
    assert fonts.covering("Łódź 0:01 สวัสดี") == [whole]


def test_pdf_breaks_lines_between_words_of_scripts_without_spaces(make_font):
    make_font("NotoSansCJK", "0123456789:。今天气很好我们去公园散步")
    text = "今天天气很好我们去公园散步。" * 12
    lines = _pages(DocumentPart(0, "", text))[0].extract_text().replace("\u200b", "").splitlines()
    assert "".join(lines[1:]) == text
    assert len(lines) > 3
    assert not any(line.startswith("。") for line in lines)


def test_pdf_refuses_a_text_with_a_character_that_no_font_has(make_font):
    """The reason names its script, and not the text."""
    make_font("NotoSans", "0123456789:. Łódź")
    with pytest.raises(UnsupportedValue, match="THAI") as refused:
        pdf.write(Document([DocumentPart(0, "", "Łódź สวัสดี")]))
    assert "Łódź" not in refused.value.message
    assert "สวัสดี" not in refused.value.message


def test_a_font_that_is_damaged_is_passed_over(make_font, font_folder):
    (font_folder / "Arial.ttf").write_bytes(b"no font at all")
    whole = make_font("Zzz", "0123456789:. Łódź")
    assert fonts.covering("Łódź") == [whole]
