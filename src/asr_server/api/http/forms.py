"""A multipart form to checked fields and a file, for every route that takes a recording."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, get_origin

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from asr_server.api.dependencies import Services
from asr_server.api.http import body
from asr_server.api.http.fields import RecordingForm, SubtitleForm, TranscriptionForm, TranslationForm
from asr_server.api.http.schemas import ErrorBody
from asr_server.core.errors import EmptyFile, InvalidInput, InvalidValue, MissingParameter, UnsupportedValue

Form = TypeVar("Form", bound=RecordingForm)

# What the routes that take a recording may answer with.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 502, 503, 504)
}

# Fields of OpenAI's that nothing here can serve: ignored, they would look served.
_NOT_SERVED = {
    "languages": "the model takes one language or finds it out; send 'language'",
    "known_speaker_names": "this server does not tell speakers apart",
    "known_speaker_references": "this server does not tell speakers apart",
}
_FILE = {"type": "string", "format": "binary", "description": "The recording; its content decides, not its name."}


@asynccontextmanager
async def read(request: Request, services: Services) -> AsyncGenerator[FormData, None]:
    """The form as it came; its files are gone when the block ends. Raises `Overloaded` before the body is read."""
    services.transcriber.check_room()
    form = await body.read_form(request, services.settings.max_upload_bytes)
    try:
        yield form
    finally:
        await form.close()


@asynccontextmanager
async def received(
    request: Request, services: Services, model: type[Form]
) -> AsyncGenerator[tuple[Form, UploadFile], None]:
    """The checked fields and the file. Nothing was decoded yet."""
    async with read(request, services) as form:
        yield parse(form, services, model)


def parse(form: FormData, services: Services, model: type[Form]) -> tuple[Form, UploadFile]:
    """The checked fields and the file. Raises the leaves of `InvalidInput`, before any audio is decoded."""
    file = body.upload(form, "file")
    if file is None:
        raise MissingParameter("The form has no file part named 'file'.", param="file")
    _refuse_what_is_not_here(form)
    lists = frozenset(name for name, field in model.model_fields.items() if get_origin(field.annotation) is list)
    values: dict[str, Any] = dict(body.scalars(form, frozenset(model.model_fields) - lists))
    values |= {name: items for name in lists if (items := body.listed(form, name))}
    values |= {name: parts for name in ("chunking_strategy",) if (parts := body.nested(form, name))}
    try:
        fields = model.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None
    _check_model(fields, services)
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return fields, file


def request_schema(model: type[RecordingForm]) -> dict[str, Any]:
    """The form as `/docs` shows it: a file and the fields."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        reference = field.pop("$ref", "").rpartition("/")[2]
        # What is an object inside is text in a form: a name, or JSON.
        inner = definitions.get(reference, {})
        field |= {key: inner[key] for key in ("enum", "type") if key in inner} if "enum" in inner else {}
        if reference and "enum" not in inner:
            field |= {"type": "string", "default": "auto"} if name == "chunking_strategy" else {"type": "string"}
    schema["properties"] = {"file": _FILE, **schema["properties"]}
    schema["properties"]["model"]["example"] = "whisper-1"
    schema["required"] = ["file", *schema.get("required", [])]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _check_model(fields: RecordingForm, services: Services) -> None:
    if isinstance(fields, TranscriptionForm | SubtitleForm | TranslationForm) and fields.model:
        services.catalog.find(fields.model)


def _refuse_what_is_not_here(form: FormData) -> None:
    """An option that would be ignored is refused: silence would look like an answer."""
    for name, reason in _NOT_SERVED.items():
        if body.listed(form, name):
            raise UnsupportedValue(f"'{name}' is not served: {reason}.", param=name)
    if body.scalars(form, frozenset({"response_format"})).get("response_format") == "diarized_json":
        raise UnsupportedValue(
            "'diarized_json' is not served: this server does not tell speakers apart.", param="response_format"
        )


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name, *inside = first["loc"]
    # The names inside other objects are the caller's own words.
    param = f"{name}.{inside[0]}" if name == "chunking_strategy" and inside else str(name)
    if first["type"] == "missing":
        return MissingParameter(f"The field '{param}' is required.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)
