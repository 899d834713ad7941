"""Builds requests from multipart forms: the fields in all spellings, and the checks of one field against another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, get_origin

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.api.http import body
from asr_server.api.http.fields import (
    MAX_TEXT_CHARS,
    ChunkingStrategy,
    Mode,
    RecordingForm,
    SubtitleForm,
    TranscriptionForm,
    TranslationForm,
)
from asr_server.api.http.schemas import ErrorBody
from asr_server.core.errors import (
    EmptyFile,
    InvalidInput,
    InvalidLanguage,
    InvalidValue,
    MissingParameter,
    UnsupportedLanguage,
    UnsupportedValue,
)
from asr_server.service.requests import (
    DEFAULT_MODEL,
    OutputOptions,
    RecordingRequest,
    ResponseFormat,
    ServerVad,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)
from asr_server.text import languages, target_languages

if TYPE_CHECKING:
    from starlette.requests import Request

    from asr_server.api.dependencies import Services

Form = TypeVar("Form", bound=RecordingForm)
R = TypeVar("R", bound=RecordingRequest)

# The statuses of errors of the routes that take a recording.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 502, 503, 504)
}

# Fields of OpenAI's that nothing here can serve. If they were ignored, they would look served.
_NOT_SERVED = {
    "languages": "the model takes one language or finds it out; send 'language'",
    "known_speaker_names": "this server does not tell speakers apart",
    "known_speaker_references": "this server does not tell speakers apart",
}
_FILE = {"type": "string", "format": "binary", "description": "The recording; its content decides, not its name."}


@asynccontextmanager
async def read(request: Request, services: Services) -> AsyncGenerator[FormData, None]:
    """The form; its files are removed when the block ends. Raises `Overloaded` before the body is read if there is too
    much work even for what can wait."""
    services.admission.check_limit()
    form = await body.read_form(request, services.settings.max_upload_bytes)
    try:
        yield form
    finally:
        await form.close()


@asynccontextmanager
async def received(
    request: Request, services: Services, build: Callable[[FormData], R]
) -> AsyncGenerator[tuple[R, UploadFile], None]:
    """The request of a form, and its file. Raises `Overloaded` and what `parse` raises."""
    services.pipeline.check_room()
    async with read(request, services) as form:
        # Azure's clients send the name of their deployment, which is in the path too, as the model.
        yield parse(form, services, build, any_model="deployment" in request.path_params)


def parse(
    form: FormData, services: Services, build: Callable[[FormData], R], *, any_model: bool = False
) -> tuple[R, UploadFile]:
    """The request and the file. `build`: one of the functions below, which make a request of the text fields.

    `any_model`: every name means the model that is loaded. Raises the leaves of `InvalidInput`, before any audio is
    decoded.
    """
    file = body.upload(form, "file")
    if file is None:
        hint = (
            " It is a text: send it with a file name, as curl does with -F file=@recording.wav."
            if "file" in form
            else ""
        )
        raise MissingParameter(f"The form has no file part named 'file'.{hint}", param="file")
    request = build(form)
    if not any_model:
        services.catalog.find(request.model)
    if not services.plan.traits.scores and isinstance(request, TranscriptionRequest) and request.output.logprobs:
        raise UnsupportedValue("The engine gives no log-probabilities.", param="include")
    source = "source_language" if isinstance(request, TranslationRequest) else "language"
    services.catalog.check_language(request.language, source)
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return request, file


def transcription_request(form: FormData) -> TranscriptionRequest:
    """Raises the leaves of `InvalidInput`."""
    fields = _fields(form, TranscriptionForm)
    _check(fields)
    asked, is_verbose = fields.timestamp_granularities, fields.response_format is ResponseFormat.VERBOSE_JSON
    output = OutputOptions(
        fields.response_format,
        segments=not asked or "segment" in asked or not is_verbose,
        words="word" in asked or fields.return_timestamps,
        cues="cue" in asked,
        logprobs=bool(fields.include),
    )
    language = languages.normalize(fields.language)
    return TranscriptionRequest(
        **_common(fields),
        model=fields.model or DEFAULT_MODEL,
        language=language,
        output=output,
        stream=fields.stream,
    )


def subtitle_request(form: FormData) -> SubtitleRequest:
    """Raises the leaves of `InvalidInput`."""
    fields = _fields(form, SubtitleForm)
    output = OutputOptions(
        ResponseFormat(fields.format), max_line_chars=fields.max_line_chars, max_lines=fields.max_lines
    )
    return SubtitleRequest(
        **_common(fields),
        model=fields.model or DEFAULT_MODEL,
        language=languages.normalize(fields.language),
        output=output,
    )


def translation_request(form: FormData) -> TranslationRequest:
    """Raises the leaves of `InvalidInput`."""
    fields = _fields(form, TranslationForm)
    try:
        source = languages.normalize(fields.source_language)
    except (InvalidLanguage, UnsupportedLanguage) as error:
        error.param = "source_language"
        raise
    return TranslationRequest(
        **_common(fields),
        model=fields.model or DEFAULT_MODEL,
        language=source,
        output=OutputOptions(fields.response_format, max_line_chars=fields.max_line_chars, max_lines=fields.max_lines),
        target_language=target_languages.find(fields.language).tag,
        glossary=fields.glossary,
        bilingual=fields.bilingual,
        source_on_failure=fields.source_on_failure,
    )


def request_schema(model: type[RecordingForm]) -> dict[str, Any]:
    """The form as `/docs` shows it: a file and the fields."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        reference = field.pop("$ref", "").rpartition("/")[2]
        # An object of the model is text in a form: a name, or JSON.
        inner = definitions.get(reference, {})
        field |= {key: inner[key] for key in ("enum", "type") if key in inner} if "enum" in inner else {}
        if reference and "enum" not in inner:
            field |= {"type": "string", "default": "auto"} if name == "chunking_strategy" else {"type": "string"}
    schema["properties"] = {"file": _FILE, **schema["properties"]}
    schema["properties"]["model"]["example"] = "whisper-1"
    schema["required"] = ["file", *schema.get("required", [])]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


class _Common(TypedDict):
    prompt: str
    hotwords: tuple[str, ...]
    temperature: float
    chunking: ServerVad | None
    word_times: WordTimes


def _common(fields: RecordingForm) -> _Common:
    """What all forms state in the same way."""
    hotwords = (*fields.hotwords, *fields.keywords)
    if sum(map(len, hotwords)) > MAX_TEXT_CHARS:
        raise InvalidValue(f"The hotwords are longer than {MAX_TEXT_CHARS} characters together.", param="hotwords")
    return {
        "prompt": fields.prompt,
        "hotwords": hotwords,
        "temperature": fields.temperature,
        "chunking": _chunking(fields.chunking_strategy),
        "word_times": WordTimes.ALIGNED if fields.mode is Mode.ACCURATE else WordTimes.ESTIMATED,
    }


def _chunking(strategy: ChunkingStrategy) -> ServerVad | None:
    if strategy.type == "auto":
        return None
    return ServerVad(strategy.threshold, strategy.prefix_padding_ms, strategy.silence_duration_ms)


def _check(fields: TranscriptionForm) -> None:
    """Refuse fields that contradict each other."""
    wanted = fields.response_format
    if fields.include and wanted is not ResponseFormat.JSON:
        raise UnsupportedValue("'include' needs response_format=json.", param="include")
    if fields.return_timestamps and wanted not in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON):
        raise UnsupportedValue("'return_timestamps' needs json or verbose_json.", param="return_timestamps")
    # `segment` is the default, which some clients send along with every format.
    verbose_only = [name for name in fields.timestamp_granularities if name != "segment"]
    if verbose_only and wanted is not ResponseFormat.VERBOSE_JSON:
        raise InvalidValue(
            f"'timestamp_granularities' with '{verbose_only[0]}' needs response_format=verbose_json.",
            param="timestamp_granularities",
        )
    if fields.stream and "cue" in fields.timestamp_granularities:
        raise UnsupportedValue("'timestamp_granularities' with 'cue' is not streamed.", param="timestamp_granularities")


def _fields(form: FormData, model: type[Form]) -> Form:
    """The checked text fields."""
    _refuse_not_served(form)
    lists = frozenset(name for name, field in model.model_fields.items() if get_origin(field.annotation) is list)
    values: dict[str, Any] = dict(body.scalars(form, frozenset(model.model_fields) - lists))
    values |= {name: items for name in lists if (items := body.listed(form, name))}
    values |= {name: parts for name in ("chunking_strategy",) if (parts := body.nested(form, name))}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None


def _refuse_not_served(form: FormData) -> None:
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
