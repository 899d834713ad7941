"""A multipart form to checked fields and a file, for every route that takes a recording. Not what the fields mean."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from asr_server.api import body
from asr_server.api.deps import Services
from asr_server.api.schemas import ErrorBody, TranscriptionForm
from asr_server.core.errors import EmptyFile, InvalidInput, InvalidValue, MissingParameter, UnsupportedValue
from asr_server.service.request import ResponseFormat, TranscribeOptions, context
from asr_server.text import languages

Form = TypeVar("Form", bound=TranscriptionForm)

# What the routes that take a recording may answer with.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 503, 504)
}

# Fields of OpenAI's that nothing here can serve: ignored, they would look served.
_NOT_SERVED = {
    "languages": "the model takes one language or finds it out; send 'language'",
    "known_speaker_names": "this server does not tell speakers apart",
    "known_speaker_references": "this server does not tell speakers apart",
}


@asynccontextmanager
async def received(
    request: Request, here: Services, model: type[Form]
) -> AsyncGenerator[tuple[Form, UploadFile], None]:
    """The checked fields and the file, which is gone when the block ends. Nothing was decoded yet.

    Raises `Overloaded` before the body is read, then the leaves of `InvalidInput`.
    """
    here.transcriber.check_room()
    form = await body.read_form(request, here.settings.max_upload_bytes)
    try:
        fields, file = parse(form, model)
        here.catalog.find(fields.model)
        yield fields, file
    finally:
        await form.close()


def parse(form: FormData, model: type[Form]) -> tuple[Form, UploadFile]:
    """The checked fields and the file. Everything is checked before any audio is decoded."""
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
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return fields, file


def options(fields: TranscriptionForm) -> TranscribeOptions:
    """What the fields ask of the service."""
    return TranscribeOptions(
        language=languages.normalize(fields.language),
        context=context(fields.prompt, fields.hotwords + fields.keywords),
        temperature=fields.temperature,
        cutting=fields.chunking_strategy.rules(),
    )


def request_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The form as `/docs` shows it: a file and the fields."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    schema["properties"]["response_format"] = {
        "type": "string",
        "enum": [f.value for f in ResponseFormat],
        "default": ResponseFormat.JSON.value,
        "description": "Shape of the answer.",
    }
    schema["properties"]["chunking_strategy"] = {
        "type": "string",
        "default": "auto",
        "description": model.model_fields["chunking_strategy"].description,
    }
    schema["properties"] = {
        "file": {
            "type": "string",
            "format": "binary",
            "description": "The recording; its content decides, not its name.",
        },
        **schema["properties"],
    }
    schema["required"] = ["file", *schema["required"]]
    schema["properties"]["model"]["example"] = "whisper-1"
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


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
    param = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    if first["type"] == "missing":
        return MissingParameter(f"The field '{param}' is required.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)
