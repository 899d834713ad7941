"""Reads what a language model wrote into texts by id, and trusts only what cannot belong to another line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import from_json

Pairs = list[tuple[str, Any]]

# What reasoning models write before they answer; some servers cut the opening tag off, a full budget the closing one.
_THOUGHT = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL | re.IGNORECASE)
_START = re.compile(r"[{\[]")
# Places in prose where an object may begin; more of them is no answer.
_MAX_STARTS = 64
_ID_NAMES = ("id", "index", "line")


def read(written: str, ids: Sequence[str]) -> dict[str, str]:
    """The texts that `written` gives for `ids`; those it does not give, or not for certain, are left out.

    Nothing at all is trusted when an id is not one of ours (the lines were numbered anew), or when ids lack at the end
    of a whole answer (two lines were merged and the rest moved up). An answer cut off in the middle counts as far as it
    goes. An id given twice with different texts is left out.
    """
    pairs, whole = _pairs(_THOUGHT.sub("", written))
    texts = [(name, value.strip()) for name, value in pairs if isinstance(value, str)]
    if len(ids) == 1:
        # A lone line has one place to go, whatever the model called it.
        return {ids[0]: texts[0][1]} if len(texts) == 1 and whole else {}
    first = dict(reversed(texts))
    if not first.keys() <= set(ids) or (whole and ids[-1] not in first):
        return {}
    twice = {name for name, text in texts if text != first[name]}
    return {name: text for name, text in first.items() if name not in twice}


class _Object(list[tuple[str, Any]]):
    """The pairs of a JSON object, also of names that occur twice, of which a dict keeps only the last."""


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, strict=False)


def _pairs(text: str) -> tuple[Pairs, bool]:
    """The pairs of the largest JSON value in the text, or of one that was cut off; and whether it was whole."""
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
            if not found and (cut := list(_flat(_cut_off(text[start.start() :])))):
                return cut, False
    return found, True


def _cut_off(text: str) -> Any:
    """What is whole of a JSON value that ends too early; None when that is not what is wrong with it."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None


def _flat(value: Any) -> Iterator[tuple[str, Any]]:
    """The pairs of an object, out of one wrapper if there is one; or of a list of objects with an id each."""
    if isinstance(value, dict | _Object):
        pairs = list(value.items()) if isinstance(value, dict) else value
        inner = [v for _, v in pairs if isinstance(v, dict | list)]
        yield from _flat(inner[0]) if len(inner) == 1 else pairs
    elif isinstance(value, list):
        yield from filter(None, map(_entry, value))


def _entry(entry: Any) -> tuple[str, Any] | None:
    """An entry such as {"id": "101", "text": "..."}; None for any other."""
    fields = dict(entry) if isinstance(entry, dict | _Object) else {}
    name = next((str(fields.pop(n)) for n in _ID_NAMES if n in fields), None)
    return (name, next(iter(fields.values()))) if name and len(fields) == 1 else None
