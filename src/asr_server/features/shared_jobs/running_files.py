"""The files of a job that runs here and is stored in a database: copies without a name, which end with their server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import ExitStack
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal

from loguru import logger

from asr_server.core.errors import JobsUnavailable
from asr_server.features.shared_jobs.database_store import RECORDING, RESULT, TRANSCRIPT, DatabaseStore
from asr_server.jobs.record import JobRecord, JobRequest, clips, with_clips
from asr_server.jobs.store import Claim, ClaimLost, JobParts


def clip_file(number: int) -> str:
    """The name of the file with the voice of a known speaker."""
    return f"clip-{number}"


class RunningFiles:
    """`JobFiles` of one run. `directory` is where the copies have their space."""

    def __init__(self, store: DatabaseStore, claim: Claim, directory: Path) -> None:
        self._store, self._claim, self._directory = store, claim, directory
        self._open = ExitStack()
        self._recording = self._file("w+b")
        self._speech, self._listed = self._file("a+b"), self._file("a+b")
        self._clips: list[bytes] = []
        self._stored_parts: list[str] = []
        self._result: BinaryIO | None = None
        self._transcript = b""

    def __enter__(self) -> RunningFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._open.close()

    async def fetch(self) -> None:
        """Copy what is stored of the job. Raises `JobsUnavailable` and `OSError`, and can then be tried again."""
        identity, request = self._claim.id, self._claim.record.request
        self._recording.seek(0)
        self._recording.truncate()
        async for chunk in self._store.read(identity, RECORDING):
            await asyncio.to_thread(self._recording.write, chunk)
        await asyncio.to_thread(self._recording.flush)
        self._clips = [
            b"".join([chunk async for chunk in self._store.read(identity, clip_file(number))])
            for number in range(len(clips(request)))
        ]
        if stored_parts := await self._store.parts(identity):
            self._stored_parts = stored_parts
            with await asyncio.to_thread(self.parts, identity) as parts:
                await asyncio.to_thread(parts.cut, 0)
                for number, key in enumerate(stored_parts):
                    async for chunk in self._store.part(identity, number):
                        await asyncio.to_thread(parts.write, chunk)
                    await asyncio.to_thread(parts.finish_part, key)

    async def store_result(self, content: bytes | None) -> None:
        """Store the result in the database. `content`: None for the file of `keep_result`."""
        source = self._result if content is None else BytesIO(content)
        assert source is not None
        if self._transcript:
            await self._store.write(self._claim, TRANSCRIPT, BytesIO(self._transcript))
        await self._store.write(self._claim, RESULT, source)

    def request(self, record: JobRecord) -> JobRequest:
        """The request with its clips."""
        return with_clips(record.request, self._clips)

    def recording(self, identity: str) -> BinaryIO:
        """The uploaded file, or the stored text, open for reading."""
        return _again(self._recording)

    def parts(self, identity: str) -> JobParts:
        """Return what is spoken already."""
        return JobParts(_again(self._speech), _again(self._listed))

    def new_result(self, identity: str) -> BinaryIO:
        """An empty file. The caller closes it."""
        return self._file("w+b")

    def keep_result(self, identity: str, written: BinaryIO) -> None:
        """Keep a result, which is stored when the job ends."""
        written.flush()
        self._result = self._open.enter_context(_again(written))

    def keep_transcript(self, identity: str, stored: bytes) -> None:
        """Keep what the result was made of, which is stored when the job ends."""
        self._transcript = stored

    async def keep_parts(self, identity: str, spoken: JobParts) -> None:
        """Store what is not stored yet. Without an answer of the database it is tried with the next part."""
        stored = zip(spoken.finished, self._stored_parts, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0].key == pair[1], stored))
        try:
            for number in range(same, len(spoken.finished)):
                del self._stored_parts[number:]
                samples = BytesIO(await asyncio.to_thread(spoken.samples_of, number))
                await self._store.keep_part(self._claim, number, spoken.finished[number].key, samples)
                self._stored_parts.append(spoken.finished[number].key)
        except JobsUnavailable as error:
            logger.warning("speech is not stored yet", reason=error.message)
        except ClaimLost:  # which ends the run
            pass

    def _file(self, mode: Literal["w+b", "a+b"]) -> BinaryIO:
        """A new file, closed at the end of the run at the latest."""
        handle, path = tempfile.mkstemp(dir=self._directory)
        os.close(handle)
        try:
            return self._open.enter_context(open(path, mode))
        finally:
            os.unlink(path)


def _again(file: BinaryIO) -> BinaryIO:
    """Return another handle of the file, at its beginning, to be closed by itself."""
    again = os.fdopen(os.dup(file.fileno()), "r+b")
    again.seek(0)
    return again
