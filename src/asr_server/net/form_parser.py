"""Parses multipart forms, also with a preamble or with `filename*`, and refuses those whose end is missing."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.formparsers import MultiPartException, MultiPartParser

from asr_server.core.errors import MalformedBody

# The most bytes of all text parts together: a prompt, hotwords, a glossary.
_MAX_TEXT_BYTES = 256 * 1024
# The most bytes of recordings of voices as data URLs, together.
_REFERENCES, _MAX_REFERENCES_BYTES = "known_speaker_references", 8 * 1024 * 1024
_MAX_FIELDS = 200
_MAX_FILES = 10
_EXTENDED_FILENAME = re.compile(rb";\s*filename\*", re.IGNORECASE)


class FormParser(MultiPartParser):
    """Skips a preamble, and takes a part with `filename*` alone for a file: urllib3 before 1.25 writes names beyond
    ASCII that way, although RFC 7578 forbids it. Refuses a form without its closing boundary: a part may be cut.
    """

    def __init__(self, headers: Headers, stream: AsyncGenerator[bytes, None]) -> None:
        _, options = parse_options_header(headers["content-type"])
        self._is_complete = False
        self._text_bytes = self._references_bytes = 0
        super().__init__(
            headers,
            _without_preamble(stream, options.get(b"boundary", b"")),
            max_files=_MAX_FILES,
            max_fields=_MAX_FIELDS,
            max_part_size=_MAX_REFERENCES_BYTES,
        )

    def on_headers_finished(self) -> None:
        """Note that all headers of a part have been read."""
        disposition = self._current_part.content_disposition or b""
        if _EXTENDED_FILENAME.search(disposition):
            self._current_part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Take the next bytes of a part."""
        if self._current_part.file is None:
            if self._current_part.field_name.startswith(_REFERENCES):
                self._references_bytes += end - start
            else:
                self._text_bytes += end - start
            if self._text_bytes > _MAX_TEXT_BYTES:
                raise MultiPartException(f"The text fields have more than {_MAX_TEXT_BYTES // 1024} KiB together")
            if self._references_bytes > _MAX_REFERENCES_BYTES:
                raise MultiPartException(f"'{_REFERENCES}' has more than {_MAX_REFERENCES_BYTES // 2**20} MiB")
        super().on_part_data(data, start, end)

    def on_end(self) -> None:
        """Note that the closing boundary has been read."""
        self._is_complete = True

    async def parse(self) -> FormData:
        """Return the parsed form. Raises `MalformedBody`."""
        try:
            form = await super().parse()
        except MultiPartException as error:
            reason = f": {error.__cause__}" if isinstance(error.__cause__, FormParserError) else ""
            raise MalformedBody(f"{error.message.removesuffix('.')}{reason}.") from error
        if not self._is_complete:
            for file in self._files_to_close_on_error:
                file.close()
            raise MalformedBody(
                "The multipart body has no closing boundary: it ends too early, or the boundary differs."
            )
        return form


async def _without_preamble(stream: AsyncGenerator[bytes, None], boundary: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the body from its first boundary on, which is at the beginning of a line."""
    delimiter = b"\n--" + boundary
    before: bytes | None = b"\n"
    async for piece in stream:
        if before is None:
            yield piece
            continue
        before += piece
        at = before.find(delimiter)
        if at < 0:
            before = before[-len(delimiter) :]
        else:
            yield before[at + 1 :]
            before = None
