"""A transcript as a document to read: a title, facts about it, and paragraphs with their times and speakers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from asr_server.recordings.paragraphs import Paragraph
from asr_server.text.scripts import TURNING

# Blanks that end a line or are one in a table; others, such as the French one before "!", stay.
_BLANKS = re.compile(r"[ \t\n\r\v\f\x1c-\x1f\x85\u2028\u2029]+")
# Control characters, halves of surrogate pairs, private and unassigned characters: no file format needs them, and XML
# has no place for most of them.
_DROPPED = frozenset({"Cc", "Cs", "Co", "Cn"})


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """One paragraph. Its texts are in one line and hold no control characters."""

    start_ms: int
    speaker: str  # "" where speakers are not distinguished
    text: str
    translation: str = ""  # "" for none

    @property
    def clock(self) -> str:
        """Return its start as minutes and seconds, after an hour with the hours: "0:05", "1:02:03"."""
        minutes, seconds = divmod(self.start_ms // 1000, 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a file. What is "" or empty is left out."""

    parts: Sequence[DocumentPart]
    title: str = ""
    facts: str = ""  # in one line below the title
    note: str = ""  # at the end

    @property
    def texts(self) -> Iterable[str]:
        """Return all that is written."""
        yield from (self.title, self.facts, self.note)
        for part in self.parts:
            yield from (part.clock, part.speaker, part.text, part.translation)


def of(paragraphs: Iterable[Paragraph]) -> Document:
    """Return the document of a transcript that has no title."""
    return Document([DocumentPart(one.start_ms, clean(one.speaker or ""), clean(one.text)) for one in paragraphs])


def clean(text: str) -> str:
    """Return the text in one line, without characters that no document has."""
    kept = (char for char in _BLANKS.sub(" ", text) if char not in TURNING)
    shown = "".join(char for char in kept if unicodedata.category(char) not in _DROPPED)
    return _BLANKS.sub(" ", shown).strip()  # blanks may have been around what was dropped


def is_right_to_left(text: str) -> bool:
    """True if the first letter belongs to a script that is written from right to left."""
    strong = (direction for char in text if (direction := unicodedata.bidirectional(char)) in ("L", "R", "AL"))
    return next(strong, "L") != "L"
