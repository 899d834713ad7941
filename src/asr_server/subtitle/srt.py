"""Cues to a SubRip file and back. Not where cues are broken.

SubRip has no escapes. What would be read as a time line or as markup is kept from it by a word joiner (U+2060) inside,
which is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from asr_server.subtitle import timecodes
from asr_server.subtitle.cues import Cue

_TROUBLE = re.compile(r"--(?=>)|<(?=[/!?A-Za-z])|\{(?=[\\A-Za-z])")
# What players take as markup of others' files; in ours a joiner stands inside.
_MARKUP = re.compile(r"</?(?:i|b|u|s|font)\b[^<>]*>|\{\\[^{}]*\}", re.IGNORECASE)


def render(cues: Iterable[Cue]) -> str:
    """The whole file: numbers from 1, `HH:MM:SS,mmm` times, a blank line after each cue. "" for no cues."""
    return "".join(f"{i}\n{timecodes.span(cue, ',')}\n{_text(cue)}\n\n" for i, cue in enumerate(cues, start=1))


def parse(file: str) -> list[Cue]:
    """The cues of a SubRip file without their markup; of bilingual ones all lines as text. What does not follow a time
    line is skipped."""
    return [
        Cue(start, end, _MARKUP.sub("", text).replace(timecodes.JOINER, ""))
        for start, end, text in timecodes.blocks(file)
    ]


def _text(cue: Cue) -> str:
    return _TROUBLE.sub(lambda trouble: trouble[0] + timecodes.JOINER, "\n".join(map(timecodes.unstamped, cue.lines)))
