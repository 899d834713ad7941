"""Makes a line of text that cannot break a subtitle file: one line, no times, no markup. Pure."""

from __future__ import annotations

import re
import unicodedata

_CLOCK = r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
# This and the arrow begin only where a run does: else blanks and dashes are searched anew from each sign of theirs.
# A cue's head as models copy it: the number on a line of its own, the times, and WebVTT's settings behind them.
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
# Control characters that are no gaps, and halves of characters, which cannot be written as UTF-8.
_NOTHING = {"Cc", "Cs"}


def one_line(text: str) -> str:
    """The text on one line: gaps of any kind are one space, characters that cannot be written are gone."""
    spaced = _GAPS.sub(" ", text)
    return "".join(c for c in spaced if unicodedata.category(c) not in _NOTHING and c != "\ufeff").strip()


def cue_text(text: str) -> str:
    """A translation as it may stand in a cue: one line without times, `-->`, or markup. May come out empty.

    Taking a piece out may bring the halves of another together, so it is done again; markup nested deeper than any
    that means something loses its signs.
    """
    found = one_line(_TIMING.sub(" ", _MARKUP.sub("", _HEADER.sub("", text))))
    for _ in range(_MAX_NESTED):
        cleaner = one_line(_ARROW.sub("→", _MARKUP.sub("", found)))
        if cleaner == found:
            return found
        found = cleaner
    return one_line(_ARROW.sub("→", found.translate(_NO_OPENING)))
