"""Joins texts with a space, or without one in scripts that have no spaces."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from asr_server.text import scripts
from asr_server.text.scripts import is_unspaced

_CJK = f"[{scripts.HAN}{scripts.KANA}\u3000-\u303f\u30fb\uff01-\uff65]"
_CJK_LINE_END = re.compile(f"(?<={_CJK})\n(?={_CJK})")


def join(texts: Iterable[str]) -> str:
    """Return the texts as one: a space between two, none where both sides are in a script without spaces."""
    joined = ""
    for text in (t.strip() for t in texts):
        if not text:
            continue
        joined += f"{joint(joined, text)}{text}"
    return joined


def dialogue(turns: Iterable[tuple[str, str]]) -> str:
    """Return a line for each run of texts of one speaker: the name, if there is one, and the texts as one.

    `turns`: name and text.
    """
    return "\n".join(
        f"{speaker}: {text}" if speaker else text
        for speaker, text in ((name, join(text for _, text in run)) for name, run in groupby(turns, key=itemgetter(0)))
    )


def unbroken(text: str) -> str:
    """Return the lines of a text as one line: Chinese and Japanese without a space between lines, all other scripts
    with one, also those that separate clauses by spaces."""
    return " ".join(_CJK_LINE_END.sub("", text).splitlines())


def joint(left: str, right: str) -> str:
    """Return the separator of two texts: a space, or "" between scripts without spaces and next to an empty text."""
    if not left or not right or (is_unspaced(left[-1]) and is_unspaced(right[0])):
        return ""
    return " "
