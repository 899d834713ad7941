"""Documents as DOCX (Office Open XML), which word processors open. python-docx is imported with the first of them."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from asr_server.core.errors import UnsupportedValue
from asr_server.features.documents.document import Document, DocumentPart, is_right_to_left

if TYPE_CHECKING:
    from docx.document import Document as WordFile
    from docx.text.paragraph import Paragraph
    from docx.text.run import Run

_MAX_TITLE_CHARS = 255  # of the properties of a file


def check() -> None:
    """Raise `UnsupportedValue` without the package that writes these files."""
    if find_spec("docx") is None:
        reason = "DOCX needs the package python-docx, which is not installed: pip install '.[documents]'."
        raise UnsupportedValue(reason, param="response_format")


def write(document: Document) -> bytes:
    """Return the file. Translations stand next to the text, in a table of two columns."""
    check()
    import docx

    file = docx.Document()
    properties = file.core_properties
    properties.title, properties.author, properties.comments = document.title[:_MAX_TITLE_CHARS], "", ""
    if document.title:
        _add_run(file.add_heading(level=1), document.title)
    if document.facts:
        _shade(_add_run(file.add_paragraph(), document.facts))
    if any(part.translation for part in document.parts):
        _add_table(file, document)
    else:
        for part in document.parts:
            _add_part(file.add_paragraph(), part)
    if document.note:
        _shade(_add_run(file.add_paragraph(), document.note))
    content = BytesIO()
    file.save(content)
    return content.getvalue()


def _add_table(file: WordFile, document: Document) -> None:
    table = file.add_table(rows=len(document.parts), cols=2)
    # `table.cell` makes this list again for each cell, which takes quadratic time.
    cells = table._cells
    for row, part in enumerate(document.parts):
        _add_part(cells[2 * row].paragraphs[0], part)
        translated = cells[2 * row + 1].paragraphs[0]
        _add_run(translated, part.translation)
        _set_direction(translated, part.translation)


def _add_part(paragraph: Paragraph, part: DocumentPart) -> None:
    _shade(paragraph.add_run(f"{part.clock}  "))
    if part.speaker:
        _add_run(paragraph, f"{part.speaker}: ").bold = True
    _add_run(paragraph, part.text)
    _set_direction(paragraph, part.text)


def _add_run(paragraph: Paragraph, text: str) -> Run:
    run = paragraph.add_run(text)
    if is_right_to_left(text):
        run.font.rtl = True
    return run


def _set_direction(paragraph: Paragraph, text: str) -> None:
    from docx.oxml import OxmlElement

    if is_right_to_left(text):
        paragraph._p.get_or_add_pPr().append(OxmlElement("w:bidi"))


def _shade(run: Run) -> None:
    from docx.shared import Pt, RGBColor

    run.font.size, run.font.color.rgb = Pt(9), RGBColor(0x66, 0x66, 0x66)
