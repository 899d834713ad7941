"""Stored records of earlier versions in the layout of this one, as JSON values."""

from __future__ import annotations

from typing import Any

VERSION = 2
Json = dict[str, Any]

# Fields of a result that earlier records had as headers.
_NOTES = {
    "X-Subtitle-Timing": "time_source",
    "X-Untranslated": "untranslated",
    "X-Translation-Error": "translation_error",
}


class NewerVersion(ValueError):
    """The record is of a later version of the server."""


def upgraded(stored: Any) -> Any:
    """The same record in the layout of `VERSION`. What is no record is returned as it is.

    Raises `NewerVersion`, and `ValueError`, `TypeError`, `AttributeError` or `KeyError` where parts are missing.
    """
    if not isinstance(stored, dict):
        return stored
    version = stored.get("version", 0)
    if isinstance(version, int) and version > VERSION:
        raise NewerVersion
    return {"version": VERSION, "record": _from_unversioned(stored)} if version == 0 else stored


def _from_unversioned(record: Json) -> Json:
    """The first layout had no number. Its requests had `options` and a `shape`, and its results had no part of their
    own."""
    request = record["request"]
    options, shape, task = request["options"], request["shape"], request["task"]
    cues = shape.get("cues", {})
    wanted = {
        "task": task,
        "language": options.get("language"),
        "prompt": options.get("context", ""),
        "temperature": options.get("temperature", 0.0),
        "output": {name: shape[name] for name in ("response_format", "segments", "words", "logprobs") if name in shape},
    }
    wanted["output"] |= {
        name: cues[before]
        for name, before in (("max_line_chars", "max_line_columns"), ("max_lines", "max_lines"))
        if before in cues
    }
    if task == "translation":
        translating = request["translating"]
        wanted |= {
            "target_language": translating["target"]["tag"],
            "glossary": translating.get("glossary", {}),
            "bilingual": request.get("bilingual", False),
            "source_on_failure": translating.get("keep_on_failure", False),
        }
    return {**record, "request": wanted, "result": _result(record)}


def _result(record: Json) -> Json | None:
    if record["state"] != "succeeded":
        return None
    notes = record.get("notes", {})
    found: Json = {name: notes[header] for header, name in _NOTES.items() if header in notes}
    _, _, quoted = notes.get("Content-Disposition", "").partition('filename="')
    name = quoted.removesuffix('"') or None
    return {**found, "content": "", "media_type": record.get("media_type", ""), "file_name": name}
