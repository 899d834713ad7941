"""Reads request bodies up to a limit of bytes, and form fields in all spellings that clients use.

Multipart forms may have a preamble or `filename*`. A form without its end is refused. `while_connected` cancels the
work on a body when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, TypeVar, cast

from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from asr_server.core.audio import wav_header
from asr_server.core.environment import restore_directory
from asr_server.core.errors import AsrError, Cancelled, InvalidInput
from asr_server.net.loop_time import TimeSlice

# The most bytes of all text parts together: a prompt, hotwords, a glossary.
_MAX_TEXT_BYTES = 256 * 1024
# The most bytes of all voice recordings that are sent as data URLs.
_REFERENCES, _MAX_REFERENCES_BYTES = "known_speaker_references", 8 * 1024 * 1024
_MAX_FIELDS = 200
_MAX_FILES = 10
_INDEX = re.compile(r"\[\d*\]")
_EXTENDED_FILENAME = re.compile(rb";\s*filename\*", re.IGNORECASE)


class FormParser(MultiPartParser):
    """A multipart parser that skips a preamble and refuses a form without its closing boundary, which may be cut off.

    It accepts a file part that has only `filename*`: urllib3 before 1.25 writes non-ASCII names that way, although RFC
    7578 forbids it.
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
        disposition = self._current_part.content_disposition or b""
        if _EXTENDED_FILENAME.search(disposition):
            self._current_part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """Count the bytes of text parts. Raises `MultiPartException` over the limits."""
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
        self._is_complete = True

    async def parse(self) -> FormData:
        """Return the parsed form. Raises `malformed_body`."""
        try:
            form = await super().parse()
        except MultiPartException as error:
            reason = f": {error.__cause__}" if isinstance(error.__cause__, FormParserError) else ""
            raise InvalidInput(f"{error.message.removesuffix('.')}{reason}.", code="malformed_body") from error
        if not self._is_complete:
            for file in self._files_to_close_on_error:
                file.close()
            raise InvalidInput(
                "The multipart body has no closing boundary: it ends too early, or the boundary differs.",
                code="malformed_body",
            )
        return form


async def _without_preamble(stream: AsyncGenerator[bytes, None], boundary: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the body from its first boundary on. A boundary begins a line."""
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


# Give up on a client after this long without data: a network may lose it without any message.
STALLED_S = 60.0
# The least bytes that must arrive in this much waiting time, and the longest waiting time of an upload. A poor mobile
# network, or speech sent while it is recorded, has ten times this rate.
_LEAST_BYTES, _LEAST_BYTES_S = 16 * 1024, 60.0
_LONGEST_S = 4 * 3600.0
# The longest waiting time for a text, which is held in memory meanwhile: 24 MB at 64 KiB a second.
_LONGEST_TEXT_S = 360.0
_MULTIPART = "multipart/form-data"
# Types of a body that is the recording itself, as curl -T, ffmpeg and GStreamer send it. curl sends no type.
_RECORDING_TYPES = ("audio/", "video/", "application/octet-stream", "application/ogg")
# 16-bit little-endian samples without a header. The server puts a WAV header before them.
_PCM = "audio/pcm"
_PCM_RATES_HZ, _PCM_CHANNELS = range(8_000, 192_001), range(1, 9)
_PCM_NUMBER = re.compile(rb"[0-9]{1,6}")
SPOOL_BYTES = 1024 * 1024  # a longer body is written to a file
# A whole string, even an unterminated one, or the beginning of another value. No character is matched twice.
_JSON_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)
# A body with 1,000 chapters, the most that makes sense, has 7,000 tokens.
_MAX_TOKENS = 20_000
# The errors of `json` for text that is not JSON, and for JSON that is nested too deeply.
NOT_JSON = (ValueError, RecursionError)

T = TypeVar("T", bound=BaseModel)


async def read_form(request: Request, max_bytes: int) -> FormData:
    """Return the parsed form, with the query's fields before its own. The caller closes it.

    If the body is a recording, it becomes the file of the form.

    Raises `unsupported_content_type`, `unsupported_encoding`, `malformed_body`, `upload_stalled`,
    `uploads_unavailable`, `Cancelled` if the client leaves, and `file_too_large`: at once if the declared length is
    over the limit, otherwise at most one network chunk after the limit.
    """
    kind = request.headers.get("content-type", "").lower()
    length = request.headers.get("content-length", "")
    has_body = length.strip("0") != "" or "transfer-encoding" in request.headers
    is_recording = kind.startswith(_RECORDING_TYPES) or (not kind and has_body)
    if not (is_recording or kind.startswith(_MULTIPART)):
        raise InvalidInput(
            f"The request body must be {_MULTIPART}, with the recording in its part 'file', or a recording "
            "(audio/*, video/* or application/octet-stream), with all fields in the query.",
            code="unsupported_content_type",
        )
    _check_encoding(request)
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large(max_bytes)
    limited = Request(request.scope, BodyReader(request.receive, max_bytes))
    try:
        with map_disk_errors():
            if is_recording:
                form = await _recording(limited, kind)
            else:
                form = await FormParser(request.headers, limited.stream()).parse()
    except (KeyError, UnicodeDecodeError, ValueError) as error:
        raise InvalidInput("The multipart body cannot be parsed.", code="malformed_body") from error
    except ClientDisconnect:
        raise Cancelled() from None
    return FormData([*request.query_params.multi_items(), *form.multi_items()])


async def _recording(request: Request, kind: str) -> FormData:
    """Return a form whose file is the body. Raises `unsupported_content_type` for samples of an unknown format."""
    header = b"" if not kind.startswith(_PCM) else _pcm_header(kind, 0)
    spooled = cast("BinaryIO", SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115 - the form closes it
    file = UploadFile(spooled, size=0, filename="recording")
    try:
        await file.write(header)
        async for piece in request.stream():
            await file.write(piece)
        size = (file.size or 0) - len(header)
        await file.seek(0)
        if header:
            await file.write(_pcm_header(kind, size))
            await file.seek(0)
        file.size = size  # an empty recording is one without samples
    except BaseException:
        await file.close()
        raise
    return FormData([("file", file)])


def _pcm_header(kind: str, size_bytes: int) -> bytes:
    _, options = parse_options_header(kind)
    rate, channels = options.get(b"rate", b"16000"), options.get(b"channels", b"1")
    are_numbers = all(map(_PCM_NUMBER.fullmatch, (rate, channels)))
    if not (are_numbers and int(rate) in _PCM_RATES_HZ and int(channels) in _PCM_CHANNELS):
        raise InvalidInput(
            f"Samples are sent as {_PCM};rate=16000, with channels=2 for two channels.",
            code="unsupported_content_type",
        )
    return wav_header(size_bytes, int(rate), int(channels))


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """Return the body as a JSON object, {} for an empty body.

    Raises `unsupported_encoding`, `malformed_body` (also for too many values), `file_too_large` and `upload_stalled`.
    """
    _check_encoding(request)
    try:
        data = await Request(request.scope, BodyReader(request.receive, max_bytes, _LONGEST_TEXT_S)).body()
        _check_values(data)
        # Decode first: from bytes, `loads` would also parse UTF-16, whose values `_check_values` cannot count.
        values = json.loads(data.decode("utf-8-sig") or "{}")
        json.dumps(values, ensure_ascii=False).encode()  # fails for lone surrogates, which could not be sent back
    except InvalidInput as error:
        error.param = None  # the body is not a file
        raise
    except NOT_JSON:
        raise InvalidInput("The body is not JSON in UTF-8, or has too many values.", code="malformed_body") from None
    if not isinstance(values, dict):
        raise InvalidInput("The body must be a JSON object.", code="malformed_body")
    return values


def validated(model: type[T], values: Any) -> T:
    """Return `values` as the model. Raises `invalid_value` with the name of the first wrong field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"])) or None
        raise InvalidInput(f"Invalid value for '{param}': {first['msg']}.", param=param) from None


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a body that a route reads itself, with its definitions inlined."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def in_place(value: Any) -> Any:
        match value:
            case {"$ref": str(reference), **rest}:
                return in_place({**definitions[reference.rpartition("/")[2]], **rest})
            case dict():
                return {name: in_place(part) for name, part in value.items()}
            case list():
                return [in_place(part) for part in value]
        return value

    found: dict[str, Any] = in_place(schema)
    return found


def json_of(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a request with this model as JSON."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema_of(model)}}}}


def _check_values(data: bytes) -> None:
    """Raise `ValueError` for too many values: parsing them would block other clients for seconds."""
    for number, _ in enumerate(_JSON_TOKEN.finditer(data)):
        if number > _MAX_TOKENS:
            raise ValueError("too many values")


def _check_encoding(request: Request) -> None:
    if request.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise InvalidInput("The body is compressed: send it without Content-Encoding.", code="unsupported_encoding")


class BodyReader:
    """Receives a body in parts, with limits on its bytes and on the time spent waiting for the client.

    Calling it raises `file_too_large` and `upload_stalled`.
    """

    def __init__(self, receive: Receive, max_bytes: int, longest_s: float = _LONGEST_S) -> None:
        self._receive = receive
        self._max_bytes, self._longest_s = max_bytes, longest_s
        self.size = 0  # bytes received
        self._slice = TimeSlice()
        self._waited_s = 0.0
        # Both as of the last check of the rate.
        self._size_before, self._waited_before_s = 0, 0.0

    async def __call__(self) -> Message:
        """Return the next message of an incomplete body, as `receive` of ASGI does."""
        await self._slice.next_round()  # `receive` returns received parts without waiting
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(STALLED_S):
                message = await self._receive()
        except TimeoutError:
            raise InvalidInput(f"Nothing of the upload came for {STALLED_S:g} s.", code="upload_stalled") from None
        self._waited_s += time.monotonic() - began_s
        self.size += len(message.get("body", b""))
        if self.size > SPOOL_BYTES:  # the body may be on disk, in a directory that may vanish
            restore_directory()
        if self.size > self._max_bytes:
            raise too_large(self._max_bytes)
        if message.get("more_body"):
            self._check_rate()
        return message

    def _check_rate(self) -> None:
        if self._waited_s > self._longest_s:
            raise InvalidInput(
                f"The upload took longer than {timedelta(seconds=self._longest_s)}.", code="upload_stalled"
            )
        if self._waited_s - self._waited_before_s < _LEAST_BYTES_S:
            return
        if self.size - self._size_before < _LEAST_BYTES:
            raise InvalidInput(
                f"The upload is too slow: less than {_LEAST_BYTES // 1024} KiB of it came in {_LEAST_BYTES_S:g} s.",
                code="upload_stalled",
            )
        self._size_before, self._waited_before_s = self.size, self._waited_s


@contextmanager
def map_disk_errors() -> Iterator[None]:
    """Raise `uploads_unavailable` for disk errors of the block, without a traceback: the message says it all."""
    try:
        yield
    except OSError as error:
        raise AsrError(
            f"The upload cannot be kept while it is read ({error.strerror}).", code="uploads_unavailable"
        ) from None


def too_large(max_bytes: int) -> InvalidInput:
    """Return the error for a body over the limit."""
    return InvalidInput(
        f"The upload is larger than the {max_bytes / 1024 / 1024:g} MiB that this server takes.",
        code="file_too_large",
        param="file",
    )


def upload(form: FormData, name: str) -> UploadFile | None:
    """Return the last file part of that name, or None. A text part does not count."""
    files = [value for key, value in form.multi_items() if key == name and isinstance(value, UploadFile)]
    return files[-1] if files else None


def scalars(form: FormData, names: frozenset[str]) -> dict[str, str]:
    """Return the text fields of these names. The last field of a name wins, and a blank one counts as absent."""
    found = {key: value.strip() for key, value in form.multi_items() if key in names and isinstance(value, str)}
    return {key: value for key, value in found.items() if value}


def listed(form: FormData, name: str, *, has_commas: bool = False) -> list[str]:
    """Return a list field in every spelling: `k`, `k[]` or `k[0]`, repeated, a JSON array, or separated by commas.
    `has_commas`: a comma is a part of a value."""
    lists = (
        found if (found := _array(value)) is not None else [value] if has_commas else value.split(",")
        for value in _values(form, name)
    )
    return [text for items in lists for item in items if (text := item.strip())]


def nested(form: FormData, name: str) -> Any:
    """Return an object field in every spelling: `k[part]` fields, a JSON object, or a word. None if it is absent."""
    key = re.compile(rf"{re.escape(name)}\[(\w+)\]")
    parts = {found[1]: v for k, v in form.multi_items() if isinstance(v, str) and (found := key.fullmatch(k))}
    if parts:
        return parts
    value = scalars(form, frozenset({name})).get(name)
    if value is None or not value.startswith(("{", '"')):
        return value
    try:
        return json.loads(value)
    except NOT_JSON:
        return value


def _values(form: FormData, name: str) -> list[str]:
    found = [(k, value) for k, value in form.multi_items() if isinstance(value, str) and k.startswith(name)]
    return [value for k, value in found if k == name or _INDEX.fullmatch(k, len(name))]


def _array(value: str) -> list[str] | None:
    """Return the items of a JSON array, or None for other values."""
    if value.lstrip().startswith("["):
        with suppress(*NOT_JSON):
            return [str(part).strip() for part in json.loads(value)]
    return None


R = TypeVar("R")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, R]) -> R:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise `Cancelled`.

    Call it after the body has been read: the next message of `receive` can then only be the disconnect.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled()
        return task.result()
    finally:
        for waiter in (task, gone):
            waiter.cancel()
        # The caller frees the work's resources as soon as this returns, so the work must be over.
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
