"""The writers of documents by the names of their formats. Markdown (CommonMark) is written here: nothing in a text is
taken for markup."""

from __future__ import annotations

import re
from collections.abc import Callable

from asr_server.features.documents import word
from asr_server.features.documents.document import Document, DocumentPart

_MARKUP = re.compile(r"[\\`*_\[\]<>~|&$]")
# At the beginning of a block they would open a heading, a list or a rule.
_OPENING = re.compile(r"^([#+=-]|\d+(?=[.)]))")


def markdown(document: Document) -> bytes:
    """Return the file in UTF-8."""
    blocks = [f"# {_escaped(document.title)}"] if document.title else []
    blocks += [_escaped(document.facts)] if document.facts else []
    for part in document.parts:
        blocks.append(_block(part))
        blocks += [f"> {_escaped(part.translation)}"] if part.translation else []
    blocks += [f"*{_escaped(document.note)}*"] if document.note else []
    return "".join(f"{block}\n\n" for block in blocks)[:-1].encode()


def _block(part: DocumentPart) -> str:
    lead = f"{part.clock} {_escaped(part.speaker)}" if part.speaker else part.clock
    return f"**{lead}** {_escaped(part.text)}"


def _escaped(text: str) -> str:
    """Return the text for one line."""
    escaped = _MARKUP.sub(r"\\\g<0>", text)
    opening = _OPENING.match(escaped)
    if opening is None:
        return escaped
    if opening[0].isdigit():  # the mark behind the number
        return f"{opening[0]}\\{escaped[opening.end() :]}"
    return f"\\{escaped}"


WRITERS: dict[str, Callable[[Document], bytes]] = {"markdown": markdown, "docx": word.write}
