"""Joins the texts of neighbouring spans as their script is written. Not punctuation restoration."""

from __future__ import annotations

import re
from collections.abc import Iterable

from asr_server.text import scripts
from asr_server.text.scripts import is_unspaced

_CJK = f"[{scripts.HAN}{scripts.KANA}\u3000-\u303f\u30fb\uff01-\uff65]"
_RUNNING_ON = re.compile(f"(?<={_CJK})\n(?={_CJK})")


def join(texts: Iterable[str]) -> str:
    """One text of many: a space between spans, none where both sides are of a script without spaces."""
    joined = ""
    for text in (t.strip() for t in texts):
        if not text:
            continue
        joined += f"{joint(joined, text)}{text}"
    return joined


def unbroken(text: str) -> str:
    """The lines of a text as one. Chinese and Japanese go on without a space; elsewhere a line ends where one was, also
    in scripts that part clauses by it."""
    return " ".join(_RUNNING_ON.sub("", text).splitlines())


def joint(left: str, right: str) -> str:
    """What stands between two texts: a space, or nothing between scripts without spaces and at the beginning."""
    if not left or not right or (is_unspaced(left[-1]) and is_unspaced(right[0])):
        return ""
    return " "
