"""The chapters of a text, by its Markdown headings of the first level."""

from __future__ import annotations

import re
from dataclasses import dataclass

# CommonMark's ATX headings: at most three blanks before, and signs at the end that do not count.
_HEADING = re.compile(r"^ {0,3}#[ \t]+(?P<title>\S.*?)(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)
_SPOKEN = re.compile(r"[^\W_]")


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of a text."""

    title: str  # for players, "" for none
    text: str  # all that is spoken

    @property
    def is_speakable(self) -> bool:
        """True if the text has a letter or a digit."""
        return _SPOKEN.search(self.text) is not None


def markdown_chapters(text: str) -> list[Chapter]:
    """Return a chapter for each line `# ...`, whose words its text begins with. Text before the first one has no
    title."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    before = Chapter("", text[: headings[0].start()] if headings else text)
    found = [
        Chapter(heading["title"], f"{heading['title']}\n\n{text[heading.end() : end].strip()}")
        for heading, end in zip(headings, ends, strict=False)
    ]
    return [chapter for chapter in [before, *found] if chapter.is_speakable]
