"""Cleans a text so that it cannot break a subtitle file: one line, no times, no markup. Pure."""

from __future__ import annotations

import re
import unicodedata

_CLOCK = r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
# The head of a cue as models copy it: the number on its own line, the times, and WebVTT's settings after them.
# `(?<!...)` lets this and the arrow begin only where a run of spaces or dashes begins: a search that begins at each
# of its characters takes quadratic time.
_TIMING = re.compile(
    rf"(?:^[ \t]*\d+[ \t]*\r?\n)?(?<![ \t])[ \t]*{_CLOCK}[ \t]*--+>[ \t]*{_CLOCK}(?:[ \t]+\w+:\S+)*", re.MULTILINE
)
_HEADER = re.compile(r"\A\s*WEBVTT[^\r\n]*[\r\n]+")
# Tags of SubRip and WebVTT, WebVTT's time tags, and override blocks of Advanced SubStation.
_MARKUP = re.compile(rf"</?(?:i|b|u|s|c|v|font|lang|ruby|rt)\b[^<>]*>|<{_CLOCK}>|\{{\\[^{{}}]*\}}", re.IGNORECASE)
_ARROW = re.compile(r"(?<!-)-{2,}>")
_MAX_NESTED = 8
_NO_OPENING = str.maketrans("", "", "<{")
_GAPS = re.compile(r"[\s\x1c-\x1f\x85\u2028\u2029]+")
# Control characters other than white space, and lone surrogates, which UTF-8 cannot encode.
_REMOVED = {"Cc", "Cs"}


def one_line(text: str) -> str:
    """The text on one line: any white space becomes one space, characters that cannot be encoded are removed."""
    spaced = _GAPS.sub(" ", text)
    return "".join(c for c in spaced if unicodedata.category(c) not in _REMOVED and c != "\ufeff").strip()


def cue_text(text: str) -> str:
    """A translation as the text of a cue: one line without times, `-->` or markup, perhaps empty.

    Removing markup may join what was around it to new markup, so this is repeated; of markup that is nested deeper
    than any real markup, the opening brackets are removed.
    """
    found = one_line(_TIMING.sub(" ", _MARKUP.sub("", _HEADER.sub("", text))))
    for _ in range(_MAX_NESTED):
        cleaner = one_line(_ARROW.sub("→", _MARKUP.sub("", found)))
        if cleaner == found:
            return found
        found = cleaner
    return one_line(_ARROW.sub("→", found.translate(_NO_OPENING)))
