"""Reads the response of a language model: texts by id. Leaves out what may belong to another line. Pure."""

from __future__ import annotations

import json
import re
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


def read(written: str, ids: Sequence[str]) -> dict[str, str]:
    """The texts that `written` has for `ids`; ids that are missing or doubtful are left out.

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
    """The pairs of the largest JSON value in the text, or of one that breaks off; and whether it was complete."""
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
    """The complete part of a JSON value that breaks off; None if it is invalid for another reason."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None


def _flat(value: Any) -> Iterator[tuple[str, Any]]:
    """The pairs of an object, perhaps inside one wrapper object; or of a list of objects that have an id each."""
    if isinstance(value, dict | _Object):
        pairs = list(value.items()) if isinstance(value, dict) else value
        inner = [v for _, v in pairs if isinstance(v, dict | list)]
        yield from _flat(inner[0]) if len(inner) == 1 else pairs
    elif isinstance(value, list):
        yield from filter(None, map(_entry, value))


def _entry(entry: Any) -> tuple[str, Any] | None:
    """The pair of an entry such as {"id": "101", "text": "..."}; None for any other."""
    fields = dict(entry) if isinstance(entry, dict | _Object) else {}
    name = next((str(fields.pop(n)) for n in _ID_NAMES if n in fields), None)
    return (name, next(iter(fields.values()))) if name and len(fields) == 1 else None
