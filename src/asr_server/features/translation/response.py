"""Reads the response of a language model: texts by id, each cleaned so that it cannot break a subtitle file. Pure.

Texts that may belong to another line are left out.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

Pairs = list[tuple[str, Any]]

# The reasoning that some models write first. Some servers cut off its opening tag, a used-up token budget the closing
# one.
_THOUGHT = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)
_START = re.compile(r"[{\[]")
# Positions in prose that are tried as the beginning of an object.
_MAX_STARTS = 64
_ID_NAMES = ("id", "index", "line")
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


def read(written: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the texts that `written` has for `ids`; ids that are missing or doubtful are left out.

    The result is empty if an id is not among `ids` (the lines were renumbered), or if the last id is missing in a
    complete response (two lines were merged and the rest moved up). A response that breaks off counts as far as it
    goes. An id with two different texts is left out.
    """
    pairs, whole = _pairs(_THOUGHT.sub("", written))
    texts = [(name, value.strip()) for name, value in pairs if isinstance(value, str)]
    if len(ids) == 1:
        # A single line can belong to one id alone, whatever id the model gave it.
        return {ids[0]: texts[0][1]} if len(texts) == 1 and whole else {}
    first = dict(reversed(texts))
    if not first.keys() <= set(ids) or (whole and ids[-1] not in first):
        return {}
    twice = {name for name, text in texts if text != first[name]}
    return {name: text for name, text in first.items() if name not in twice}


class _Object(list[tuple[str, Any]]):
    """The pairs of a JSON object. A dict would keep only the last of names that occur twice."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, strict=False)


def _pairs(text: str) -> tuple[Pairs, bool]:
    """Return the pairs of the largest JSON value in the text, or of one that breaks off; and whether it was
    complete."""
    found: Pairs = []
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            break
        try:
            value, position = _DECODER.raw_decode(text, start.start())
            found = max(found, list(_flat(value)), key=len)
        except (ValueError, RecursionError):
            position = start.end()
            if not found and (partial := list(_flat(_parse_partial(text[start.start() :])))):
                return partial, False
    return found, True


def _parse_partial(text: str) -> Any:
    """Return the complete part of a JSON value that breaks off; None if it is invalid for another reason."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None


def _flat(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the pairs of an object, perhaps inside one wrapper object; or of a list of objects that have an id each."""
    if isinstance(value, dict | _Object):
        pairs = list(value.items()) if isinstance(value, dict) else value
        inner = [v for _, v in pairs if isinstance(v, dict | list)]
        yield from _flat(inner[0]) if len(inner) == 1 else pairs
    elif isinstance(value, list):
        yield from filter(None, map(_entry, value))


def _entry(entry: Any) -> tuple[str, Any] | None:
    """Return the pair of an entry such as {"id": "101", "text": "..."}; None for any other."""
    fields = dict(entry) if isinstance(entry, dict | _Object) else {}
    name = next((str(fields.pop(n)) for n in _ID_NAMES if n in fields), None)
    return (name, next(iter(fields.values()))) if name and len(fields) == 1 else None


def one_line(text: str) -> str:
    """Return the text on one line: any white space becomes one space, characters that cannot be encoded are removed."""
    spaced = _GAPS.sub(" ", text)
    return "".join(c for c in spaced if unicodedata.category(c) not in _REMOVED and c != "\ufeff").strip()


def cue_text(text: str) -> str:
    """Return a translation as the text of a cue: one line without times, `-->` or markup, perhaps empty.

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
