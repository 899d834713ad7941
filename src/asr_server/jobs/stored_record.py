"""A job's record as it is stored: JSON with a version, which changes whenever records of before would be misread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal

import pydantic_core
from pydantic import TypeAdapter

from asr_server.features.shared_jobs import migration
from asr_server.jobs.record import JobRecord, with_clips

# What a record that is no record makes `loaded` raise.
DAMAGED = (ValueError, TypeError, AttributeError, KeyError)


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    version: Literal[2]
    record: JobRecord


_stored_records = TypeAdapter(_StoredRecord)


def dumped(record: JobRecord) -> bytes:
    """The record as it is stored: without the clips of known speakers, which are stored beside it."""
    record = replace(record, request=with_clips(record.request, repeat(b"")))
    return _stored_records.dump_json(_StoredRecord(2, record))


def loaded(stored: bytes | str, identity: str) -> JobRecord:
    """The same record, of the job with that id. Raises `migration.NewerVersion` and those of `DAMAGED`."""
    record = _stored_records.validate_python(migration.upgraded(pydantic_core.from_json(stored))).record
    if record.id != identity:
        raise ValueError("the record is of another job")
    return record
