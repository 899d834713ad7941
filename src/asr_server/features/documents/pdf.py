"""Documents as PDF, with text that can be searched and copied. fpdf2 is imported with the first of them.

Western European texts are set in Helvetica, which every viewer has. All others need fonts of this machine, of which the
file gets the characters that it uses. A text with a character that no font has is refused.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from asr_server.features.documents import fonts
from asr_server.features.documents.document import Document, DocumentPart, is_right_to_left
from asr_server.text import scripts, words

if TYPE_CHECKING:
    from fpdf import FPDF

_WESTERN = "cp1252"
_TITLE_PT, _TEXT_PT, _NOTE_PT = 18, 11, 9
_MARGIN_MM = 25
_LINE = 0.53  # mm of height of a line for each point of its type
_HEAD_MM = 20  # room that a time at the end of a page needs, so that its paragraph begins there too
_SOFT, _BLACK = (102, 102, 102), (0, 0, 0)
_BREAK = "\u200b"  # a line may be broken there


def write(document: Document) -> bytes:
    """Return the file. Translations stand below the text. Raises `UnsupportedValue` for a character without a font."""
    page = _page("".join(document.texts))
    page.set_title(document.title)
    page.set_margin(_MARGIN_MM)
    page.set_auto_page_break(True, _MARGIN_MM)
    page.add_page()
    if document.title:
        _set(page, document.title, _TITLE_PT)
    if document.facts:
        _set(page, document.facts, _NOTE_PT, _SOFT)
    for part in document.parts:
        _set_part(page, part)
    if document.note:
        _set(page, document.note, _NOTE_PT, _SOFT)
    return bytes(page.output())


def _page(text: str) -> FPDF:
    """Return an empty file with the fonts for the text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it cannot add pictures without Pillow
        from fpdf import FPDF

    page = FPDF(format="A4")
    try:
        text.encode(_WESTERN)
    except UnicodeEncodeError:
        files = fonts.covering(text)
        for number, file in enumerate(files):
            page.add_font(f"font{number}", fname=file)
        page.set_font("font0")
        page.set_fallback_fonts([f"font{number}" for number in range(1, len(files))])
        # Arabic letters, and marks of Thai and of Indian scripts, take their forms and places by their neighbours.
        page.set_text_shaping(use_shaping_engine=True)
    else:
        page.core_fonts_encoding = _WESTERN
        page.set_font("helvetica")
    return page


def _set_part(page: FPDF, part: DocumentPart) -> None:
    if page.will_page_break(_HEAD_MM):
        page.add_page()
    _set(page, f"{part.clock}   {part.speaker}".strip(), _NOTE_PT, _SOFT, gap=0)
    _set(page, part.text, _TEXT_PT)
    if part.translation:
        _set(page, part.translation, _TEXT_PT, _SOFT)


def _set(page: FPDF, text: str, size_pt: int, colour: tuple[int, int, int] = _BLACK, gap: float = 0.5) -> None:
    """Set a paragraph with `gap` lines after it."""
    height_mm = size_pt * _LINE
    page.set_text_color(*colour)
    page.set_font_size(size_pt)
    align = "R" if is_right_to_left(text) else "L"
    page.multi_cell(0, height_mm, _breakable(text), align=align, new_x="LMARGIN", new_y="NEXT")
    page.ln(gap * height_mm)


def _breakable(text: str) -> str:
    """Return the text with a break after each word of a script without spaces."""
    if not any(map(scripts.is_unspaced, text)):
        return text
    found = words.split(text)
    gaps = words.gaps(text, found)
    return found[0] + "".join(f"{gap or _BREAK}{word}" for gap, word in zip(gaps[1:], found[1:], strict=True))
