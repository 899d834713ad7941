"""Writes and reads SubRip files.

SubRip has no escapes. An invisible word joiner (U+2060) is inserted into text that would be read as a time line or as
markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from asr_server.subtitle import timecodes
from asr_server.subtitle.cues import Cue, with_names

_AMBIGUOUS = re.compile(r"--(?=>)|<(?=[/!?A-Za-z])|\{(?=[\\A-Za-z])")
# Markup in files of others; in files of this server a joiner is inside.
_MARKUP = re.compile(r"</?(?:i|b|u|s|font)\b[^<>]*>|\{\\[^{}]*\}", re.IGNORECASE)


def render(cues: Iterable[Cue], first: int = 1) -> str:
    """Return the whole file: numbers from `first`, `HH:MM:SS,mmm` times, a blank line after each cue. "" for no cues.

    A cue begins with the name of its speaker where that is another than before.
    """
    numbered = enumerate(with_names(cues), start=first)
    return "".join(f"{i}\n{timecodes.span(cue, ',')}\n{_text(cue)}\n\n" for i, cue in numbered)


def parse(file: str) -> list[Cue]:
    """Return the cues of a SubRip file without their markup; of bilingual cues all lines as text.

    Lines that follow no time line are skipped.
    """
    return [
        Cue(start, end, _MARKUP.sub("", text).replace(timecodes.JOINER, ""))
        for start, end, text in timecodes.blocks(file)
    ]


def _text(cue: Cue) -> str:
    return _AMBIGUOUS.sub(
        lambda found: found[0] + timecodes.JOINER, "\n".join(map(timecodes.without_timecode, cue.lines))
    )
