"""A job's record as it is stored: JSON with a version, which changes whenever records of before would be misread.

Records of earlier versions are brought into the layout of this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Literal, Union

import pydantic_core
from pydantic import TypeAdapter

from asr_server.jobs.record import JobRecord, JobRequest, with_clips

# The exceptions of `RecordFormat.loaded` for a record that is no record.
DAMAGED = (ValueError, TypeError, AttributeError, KeyError)
VERSION: Literal[2] = 2
Json = dict[str, Any]

# Fields of a result that earlier records had as headers.
_NOTES = {
    "X-Subtitle-Timing": "time_source",
    "X-Untranslated": "untranslated",
    "X-Translation-Error": "translation_error",
}


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    version: Literal[2]
    record: JobRecord


_stored_records = TypeAdapter(_StoredRecord)


class NewerVersion(ValueError):
    """The record is of a later version of the server."""


class RecordFormat:
    """Writes and reads records whose requests are of these types, which differ in their `task`."""

    def __init__(self, request_types: Iterable[type[JobRequest]]) -> None:
        union: Any = Union[tuple(request_types)]  # noqa: UP007 - the types are known at run time alone
        self._requests: TypeAdapter[JobRequest] = TypeAdapter(union)

    def dumped(self, record: JobRecord) -> bytes:
        """Return the record as it is stored: without the clips of known speakers, which are stored beside it."""
        record = replace(record, request=with_clips(record.request, repeat(b"")))
        return pydantic_core.to_json(_StoredRecord(VERSION, record), inf_nan_mode="null")

    def loaded(self, stored: bytes | str, identity: str) -> JobRecord:
        """Return the record of the job with that id. Raises `NewerVersion` and the exceptions of `DAMAGED`."""
        record = _stored_records.validate_python(_upgraded(pydantic_core.from_json(stored))).record
        if record.id != identity:
            raise ValueError("the record is of another job")
        return replace(record, request=self._requests.validate_python(record.request))


def _upgraded(stored: Any) -> Any:
    """Return the record in the layout of `VERSION`, and anything that is no record as it is.

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
