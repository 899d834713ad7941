"""A transcript as a readable document: a title, facts about it, and paragraphs with their times and speakers.

The format is Markdown (CommonMark) or DOCX (Office Open XML). All text is escaped, so nothing in it acts as markup.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from xml.sax.saxutils import escape
from zipfile import ZIP_DEFLATED, ZipFile

from asr_server.text.scripts import TURNING

# White space that becomes a plain space. Other spaces, such as the French one before "!", stay.
_BLANKS = re.compile(r"[ \t\n\r\v\f\x1c-\x1f\x85\u2028\u2029]+")
# Control characters, halves of surrogate pairs, private and unassigned characters: no file format needs them, and XML
# has no place for most of them.
_DROPPED = frozenset({"Cc", "Cs", "Co", "Cn"})


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """One paragraph. Its texts are in one line and hold no control characters."""

    start_ms: int
    speaker: str  # "" if speakers are not distinguished
    text: str
    translation: str = ""  # "" for none

    @property
    def clock(self) -> str:
        """Return its start as minutes and seconds, with hours from one hour on: "0:05", "1:02:03"."""
        minutes, seconds = divmod(self.start_ms // 1000, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file. Empty fields are left out."""

    parts: Sequence[DocumentPart]
    title: str = ""
    facts: str = ""  # in one line below the title
    note: str = ""  # at the end

    @property
    def texts(self) -> Iterable[str]:
        """Return all texts that the file contains."""
        yield from (self.title, self.facts, self.note)
        for part in self.parts:
            yield from (part.clock, part.speaker, part.text, part.translation)


def clean(text: str) -> str:
    """Return the text in one line, without characters that do not belong in a document."""
    kept = (char for char in _BLANKS.sub(" ", text) if char not in TURNING)
    shown = "".join(char for char in kept if unicodedata.category(char) not in _DROPPED)
    return _BLANKS.sub(" ", shown).strip()  # dropped characters may have had blanks on both sides


def is_right_to_left(text: str) -> bool:
    """Return True if the first letter belongs to a script that is written from right to left."""
    strong = (direction for char in text if (direction := unicodedata.bidirectional(char)) in ("L", "R", "AL"))
    return next(strong, "L") != "L"


_MARKUP = re.compile(r"[\\`*_\[\]<>~|&$]")
# At the beginning of a block, a mark or a number with a mark after it would open a heading, a list or a rule.
_OPENING = re.compile(r"^(\d+)(?=[.)])|^(?=[#+=-])")


def markdown(document: Document) -> bytes:
    """Return the file in UTF-8."""
    blocks = [f"# {_escaped(document.title)}"] if document.title else []
    blocks += [_escaped(document.facts)] if document.facts else []
    for part in document.parts:
        lead = f"{part.clock} {_escaped(part.speaker)}" if part.speaker else part.clock
        blocks.append(f"**{lead}** {_escaped(part.text)}")
        blocks += [f"> {_escaped(part.translation)}"] if part.translation else []
    blocks += [f"*{_escaped(document.note)}*"] if document.note else []
    return "".join(f"{block}\n\n" for block in blocks)[:-1].encode()


def _escaped(text: str) -> str:
    """Escape the text, which is a line of its own."""
    escaped = _MARKUP.sub(r"\\\g<0>", text)
    return _OPENING.sub(r"\1\\", escaped)


_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_SCHEMAS = "http://schemas.openxmlformats.org"
_WORD = f'xmlns:w="{_SCHEMAS}/wordprocessingml/2006/main"'
_TYPE = "application/vnd.openxmlformats-"
_OFFICE, _PACKAGE = f"{_SCHEMAS}/officeDocument/2006/relationships", f"{_SCHEMAS}/package/2006"
_FILES = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    f'<Default Extension="rels" ContentType="{_TYPE}package.relationships+xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{_TYPE}officedocument.wordprocessingml.document.main+xml"/>'
    f'<Override PartName="/word/styles.xml" ContentType="{_TYPE}officedocument.wordprocessingml.styles+xml"/>'
    f'<Override PartName="/docProps/core.xml" ContentType="{_TYPE}package.core-properties+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="a" Type="{_OFFICE}/officeDocument" Target="word/document.xml"/><Relationship Id="b" '
    f'Type="{_PACKAGE}/relationships/metadata/core-properties" Target="docProps/core.xml"/></Relationships>',
    "word/_rels/document.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="a" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
    "word/styles.xml": f'<w:styles {_WORD}><w:style w:type="paragraph" w:default="1" w:styleId="Normal">'
    '<w:name w:val="Normal"/><w:pPr><w:spacing w:after="160"/></w:pPr><w:rPr><w:sz w:val="22"/></w:rPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/><w:basedOn w:val="Normal"/><w:pPr>'
    '<w:outlineLvl w:val="0"/></w:pPr><w:rPr><w:b/><w:sz w:val="32"/></w:rPr></w:style></w:styles>',
}
_GREY = '<w:color w:val="666666"/><w:sz w:val="18"/>'


def docx(document: Document) -> bytes:
    """Return the file. Translations stand next to the text, in a table of two columns."""
    body = [_paragraph(document.title, style="Heading1")] if document.title else []
    body += [_paragraph(document.facts, _GREY)] if document.facts else []
    if any(part.translation for part in document.parts):
        rows = ((_part(part), _paragraph(part.translation)) for part in document.parts)
        cells = ("".join(f'<w:tc><w:tcPr><w:tcW w:w="4500"/></w:tcPr>{cell}</w:tc>' for cell in row) for row in rows)
        grid = '<w:tblPr/><w:tblGrid><w:gridCol w:w="4500"/><w:gridCol w:w="4500"/></w:tblGrid>'
        body += [f"<w:tbl>{grid}", *(f"<w:tr>{row}</w:tr>" for row in cells), "</w:tbl><w:p/>"]
    else:
        body += map(_part, document.parts)
    body += [_paragraph(document.note, _GREY)] if document.note else []
    facts = f'xmlns="{_PACKAGE}/metadata/core-properties" xmlns:dc="http://purl.org/dc/elements/1.1/"'
    files = _FILES | {
        "word/document.xml": f"<w:document {_WORD}><w:body>{''.join(body)}</w:body></w:document>",
        "docProps/core.xml": f"<coreProperties {facts}><dc:title>{escape(document.title)}</dc:title></coreProperties>",
    }
    content = BytesIO()
    with ZipFile(content, "w", ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, _HEAD + text)
    return content.getvalue()


def _part(part: DocumentPart) -> str:
    speaker = _run(f"{part.speaker}: ", "<w:b/>") if part.speaker else ""
    return _paragraph(part.text, before=_run(f"{part.clock}  ", _GREY) + speaker)


def _paragraph(text: str, look: str = "", style: str = "Normal", before: str = "") -> str:
    direction = "<w:bidi/>" if is_right_to_left(text) else ""
    return f'<w:p><w:pPr><w:pStyle w:val="{style}"/>{direction}</w:pPr>{before}{_run(text, look)}</w:p>'


def _run(text: str, look: str) -> str:
    direction = "<w:rtl/>" if is_right_to_left(text) else ""
    return f'<w:r><w:rPr>{look}{direction}</w:rPr><w:t xml:space="preserve">{escape(text)}</w:t></w:r>'


# The writer of each format, its media type, and the ending of its files.
FORMATS: dict[str, tuple[Callable[[Document], bytes], str, str]] = {
    "markdown": (markdown, "text/markdown; charset=utf-8", "md"),
    "docx": (docx, f"{_TYPE}officedocument.wordprocessingml.document", "docx"),
}
