"""Reads the forms with a recording into requests, and shows their fields in `/docs`.

Unknown fields are ignored, as OpenAI's clients expect. Fields of OpenAI's that are not served are refused.
"""

from __future__ import annotations

import base64
import functools
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import InvalidInput, UnsupportedLanguage
from asr_server.net import body
from asr_server.net.errors import ErrorBody
from asr_server.recordings.requests import (
    MAX_CLIPS_BYTES,
    ChannelMode,
    RecordingRequest,
    SegmentsRequest,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    VoiceDetection,
)

if TYPE_CHECKING:
    from starlette.requests import Request

    from asr_server.engine.feature import Plan
    from asr_server.services import Services

_ADAPTERS: dict[type[RecordingRequest], TypeAdapter[Any]] = {
    kind: TypeAdapter(kind) for kind in (TranscriptionRequest, SegmentsRequest, SubtitleRequest, TranslationRequest)
}
R = TypeVar("R", bound=RecordingRequest)
ReadForm = Callable[["Request", int], Awaitable[FormData]]

# The error statuses of the routes that take a recording.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 422, 429, 500, 501, 502, 503, 504)
}

_REFERENCES = "known_speaker_references"
# Lists whose items may contain commas: names, and data URLs.
_WITH_COMMAS = ("known_speaker_names", _REFERENCES)
_FILE = {"type": "string", "format": "binary", "description": "The recording; its content decides, not its name."}


@asynccontextmanager
async def read(request: Request, services: Services, read_form: ReadForm = body.read_form) -> AsyncIterator[FormData]:
    """Yield the form, and remove its files when the block ends. Raises `Overloaded` before the body is read if there is
    too much work even for requests that can wait."""
    services.admission.check(can_wait=True)
    form = await read_form(request, services.settings.max_upload_bytes)
    try:
        for parts in services.features:
            for name, complete in parts.form_fields.items():
                form = await complete(form, request) if name in form else form
        yield form
    finally:
        await form.close()


@asynccontextmanager
async def received(
    request: Request, services: Services, build: Callable[[FormData], R]
) -> AsyncGenerator[tuple[R, UploadFile], None]:
    """Yield the request of a form, and its file. Raises `Overloaded` and what `parse` raises."""
    services.admission.check()
    async with read(request, services) as form:
        # As the model, Azure's clients send the name of their deployment, which is also in the path.
        yield parse(form, services, build, any_model="deployment" in request.path_params)


def parse(
    form: FormData, services: Services, build: Callable[[FormData], R], *, any_model: bool = False
) -> tuple[R, UploadFile]:
    """Return the request and the file. `build`: one of the functions below, which build a request from text fields.

    `any_model`: every name means the model that is loaded. Raises `InvalidInput` before any audio is decoded.
    """
    file = body.upload(form, "file")
    if file is None:
        hint = " It is a text: send it with a file name, as curl -F file=@recording.wav does." if "file" in form else ""
        raise InvalidInput(
            f"The form has no file part named 'file'.{hint}", code="missing_required_parameter", param="file"
        )
    try:
        request = build(form)
    except UnsupportedLanguage as error:
        raise services.catalog.unknown_language(param=error.param or "language") from None
    model = services.catalog.find(request.model, any_name=any_model).resident
    if not services.plan.traits.scores and ("logprobs" in request.listed or request.vad is VoiceDetection.ADVISE):
        param = "include" if "logprobs" in request.listed else "vad"
        raise InvalidInput("The engine gives no log-probabilities.", code="unsupported_value", param=param)
    if request.speakers and (request.channel_mode is not ChannelMode.SPLIT or request.known_speaker_names):
        _check_speakers(services.plan)
    services.catalog.check_language(request.spoken_language, request.spoken_field, model=model)
    for language in request.languages:
        services.catalog.check_language(language, "languages", model=model)
    if request.languages and not services.plan.traits.detects_among:
        raise InvalidInput(
            "The engine detects the language among all that it knows: send one language, or none.",
            code="unsupported_value",
            param="languages",
        )
    services.check(request)
    if file.size == 0:
        raise InvalidInput("The file is empty.", code="empty_file", param="file")
    return request, file


def _check_speakers(plan: Plan) -> None:
    """Raise `unsupported_value` if voices cannot be distinguished. Channels need no model."""
    if not plan.is_active("speakers"):
        raise InvalidInput(
            f"This server does not tell speakers apart by their voices ({plan.reason('speakers')}), only by channel, "
            "with channel_mode=split and without known speakers.",
            code="unsupported_value",
            param="speakers",
        )


def requested(kind: type[R], form: FormData) -> R:
    """Return the request that the text fields describe. Raises `InvalidInput`."""
    try:
        request: R = _ADAPTERS[kind].validate_python(_values(kind, form))
    except ValidationError as error:
        raise _field_error(error) from None
    request = request.checked()
    clips = tuple(map(_clip, request.known_speaker_references))
    if sum(map(len, clips)) > MAX_CLIPS_BYTES:
        raise InvalidInput(f"The references have more than {MAX_CLIPS_BYTES:_} bytes together.", param=_REFERENCES)
    return replace(request, known_speaker_references=clips)


transcription_request = functools.partial(requested, TranscriptionRequest)
segments_request = functools.partial(requested, SegmentsRequest)
subtitle_request = functools.partial(requested, SubtitleRequest)
translation_request = functools.partial(requested, TranslationRequest)


def _values(kind: type[RecordingRequest], form: FormData) -> dict[str, Any]:
    """Return the text fields as values of JSON types. The route decides `task`."""
    lists = {one.name for one in fields(kind) if isinstance(one.default, tuple)}
    others = frozenset(one.name for one in fields(kind)) - lists - {"task"}
    values: dict[str, Any] = dict(body.scalars(form, others))
    for name in lists:
        values[name] = body.listed(form, name, has_commas=name in _WITH_COMMAS)
    if cuts := body.nested(form, "chunking_strategy"):
        values["chunking_strategy"] = {"type": cuts} if isinstance(cuts, str) else cuts
    if glossary := values.get("glossary"):
        with suppress(*body.NOT_JSON):
            values["glossary"] = json.loads(glossary)
    return values


def request_schema(kind: type[Any], *more: type[Any]) -> dict[str, Any]:
    """Return the schema of the form of a request, as `/docs` shows it: a file, its options, and the fields of `more`.
    The last of these types names the schema."""
    schemas = [TypeAdapter(one).json_schema(ref_template="#/components/schemas/{model}") for one in (kind, *more)]
    schema: dict[str, Any] = {"type": "object", "title": (more or (kind,))[-1].__name__.replace("Request", "Form")}
    schema["description"] = inspect.cleandoc((more or (kind,))[-1].__doc__ or "")
    schema["properties"] = {"file": _FILE}
    for one in schemas:
        schema["properties"] |= {
            name: _plain(field, one.get("$defs", {}))
            for name, field in one["properties"].items()
            if "description" in field
        }
    schema["properties"]["model"]["example"] = "whisper-1"
    schema["required"] = ["file", *schemas[0].get("required", [])]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _plain(field: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a field without references and choices: in a form an object is text, a name or JSON."""
    if "anyOf" in field:  # a value or nothing
        field |= field.pop("anyOf")[0]
        del field["default"]
    if reference := field.get("items", {}).get("$ref"):
        inner = definitions[reference.rpartition("/")[2]]
        field["items"] = {key: inner[key] for key in ("enum", "type")}
    if reference := field.pop("$ref", ""):
        inner = definitions[reference.rpartition("/")[2]]
        field |= (
            {key: inner[key] for key in ("enum", "type")} if "enum" in inner else {"type": "string", "default": "auto"}
        )
    return field


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name, *inside = first["loc"]
    # In other objects, the names are text that the caller chose.
    param = f"{name}.{inside[0]}" if name == "chunking_strategy" and inside else str(name)
    reason = first["msg"].replace("Tuple should", "List should")  # as lists are called in JSON
    return InvalidInput(f"Invalid value for '{param}': {reason}.", param=param)


def _clip(reference: bytes) -> bytes:
    """Return the audio file in a data URL, which may have line breaks, as `base64` writes. Its type is ignored."""
    head, _, data = reference.partition(b",")
    if not head.lower().startswith(b"data:") or not head.lower().endswith(b";base64"):
        raise InvalidInput("A reference is a data URL like 'data:audio/wav;base64,UklGRg...'.", param=_REFERENCES)
    try:
        clip = base64.b64decode(b"".join(data.split()), validate=True)
    except ValueError:
        raise InvalidInput("A reference is not valid base64.", param=_REFERENCES) from None
    if not clip:
        raise InvalidInput("A reference is empty.", param=_REFERENCES)
    return clip
