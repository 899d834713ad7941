"""Builds requests from multipart forms: the fields in all spellings, and the checks of one field against another."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, get_origin

from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import (
    EmptyFile,
    InvalidInput,
    InvalidLanguage,
    InvalidValue,
    MissingParameter,
    UnsupportedLanguage,
    UnsupportedValue,
)
from asr_server.net import body
from asr_server.recordings.fields import (
    MAX_TEXT_CHARS,
    ChunkingStrategy,
    Mode,
    RecordingForm,
    SubtitleForm,
    TranscriptionForm,
    TranslationForm,
)
from asr_server.recordings.requests import (
    DEFAULT_MODEL,
    ChannelMode,
    OutputOptions,
    RecordingRequest,
    ResponseFormat,
    ServerVad,
    SpeakerOptions,
    SubtitleRequest,
    TranscriptionRequest,
    TranslationRequest,
    WordTimes,
)
from asr_server.recordings.schemas import ErrorBody
from asr_server.recordings.speaker_fields import channel_mode, speaker_options
from asr_server.subtitle.cues import SpeakerStyle
from asr_server.text import languages

if TYPE_CHECKING:
    from starlette.requests import Request

    from asr_server.engine.plan import Plan
    from asr_server.services import Services

Form = TypeVar("Form", bound=RecordingForm)
R = TypeVar("R", bound=RecordingRequest)

# The statuses of errors of the routes that take a recording.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 429, 500, 501, 502, 503, 504)
}

# Lists whose items may contain commas: names, and data URLs.
_WITH_COMMAS = ("known_speaker_names", "known_speaker_references")
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
    services.admission.check()
    async with read(request, services) as form:
        # Azure's clients send the name of their deployment, which is in the path too, as the model.
        yield parse(form, services, build, any_model="deployment" in request.path_params)


def parse(
    form: FormData, services: Services, build: Callable[[FormData], R], *, any_model: bool = False
) -> tuple[R, UploadFile]:
    """Return the request and the file. `build`: one of the functions below, which make a request of the text fields.

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
    model = services.catalog.find(request.model, any_name=any_model).resident
    if not services.plan.traits.scores and isinstance(request, TranscriptionRequest) and request.output.logprobs:
        raise UnsupportedValue("The engine gives no log-probabilities.", param="include")
    if request.speakers and (request.channel_mode is not ChannelMode.SPLIT or request.speakers.known):
        _check_speakers(services.plan)
    source = "source_language" if isinstance(request, TranslationRequest) else "language"
    services.catalog.check_language(request.language, source, model=model)
    for language in request.languages:
        services.catalog.check_language(language, "languages", model=model)
    if request.languages and not services.plan.traits.detects_among:
        raise UnsupportedValue(
            "The engine detects the language among all that it knows: send one language, or none.", param="languages"
        )
    if file.size == 0:
        raise EmptyFile("The file is empty.", param="file")
    return request, file


def _check_speakers(plan: Plan) -> None:
    """Raise `UnsupportedValue` if voices cannot be distinguished. Channels need no model for that."""
    if not plan.is_active("speakers"):
        reason = next((option.reason for option in plan.options if option.name == "speakers"), "")
        raise UnsupportedValue(
            f"This server does not tell speakers apart by their voices ({reason}), only by channel, with "
            "channel_mode=split and without known speakers.",
            param="speakers",
        )


def transcription_request(form: FormData) -> TranscriptionRequest:
    """Return the request of a form. Raises `InvalidInput`, also if the answer would not show the speakers."""
    request = segments_request(form)
    output, answer = request.output, request.output.response_format
    if request.speakers is None or output.words:
        return request
    if answer is ResponseFormat.JSON or (answer is ResponseFormat.TEXT and request.stream):
        raise InvalidValue(
            f"{'A stream of ' if request.stream else ''}'{answer}' does not show speakers: ask for diarized_json or "
            "verbose_json, or for words with return_timestamps=true.",
            param="response_format",
        )
    return request


def segments_request(form: FormData) -> TranscriptionRequest:
    """Return a request whose answer lists segments, whatever the format says. Raises the leaves of `InvalidInput`."""
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
    return TranscriptionRequest(
        **_common(
            fields,
            ("language", fields.language),
            diarized=fields.response_format is ResponseFormat.DIARIZED_JSON,
        ),
        model=fields.model or DEFAULT_MODEL,
        output=output,
        stream=fields.stream,
    )


def subtitle_request(form: FormData) -> SubtitleRequest:
    """Raises the leaves of `InvalidInput`."""
    fields = _fields(form, SubtitleForm)
    output = OutputOptions(
        ResponseFormat(fields.format),
        max_line_chars=fields.max_line_chars,
        max_lines=fields.max_lines,
        speaker_style=fields.speaker_style,
    )
    return SubtitleRequest(
        **_common(fields, ("language", fields.language)),
        model=fields.model or DEFAULT_MODEL,
        output=output,
    )


def translation_request(form: FormData) -> TranslationRequest:
    """Raises the leaves of `InvalidInput`."""
    fields = _fields(form, TranslationForm)
    _check_translation(fields)
    return TranslationRequest(
        **_common(fields, ("source_language", fields.source_language)),
        model=fields.model or DEFAULT_MODEL,
        output=OutputOptions(
            fields.response_format,
            max_line_chars=fields.max_line_chars,
            max_lines=fields.max_lines,
            speaker_style=fields.speaker_style,
        ),
        target_language=languages.find(fields.language).tag,
        glossary=fields.glossary,
        bilingual=fields.bilingual,
        source_on_failure=fields.source_on_failure,
    )


def request_schema(model: type[RecordingForm]) -> dict[str, Any]:
    """Return the schema of the form, as `/docs` shows it: a file and the fields."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if "anyOf" in field:  # a value or nothing
            field |= field.pop("anyOf")[0]
            del field["default"]
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
    language: str | None
    languages: tuple[str, ...]
    prompt: str
    hotwords: tuple[str, ...]
    temperature: float
    chunking: ServerVad | None
    word_times: WordTimes
    speakers: SpeakerOptions | None
    channel_mode: ChannelMode


def _common(fields: RecordingForm, spoken: tuple[str, str], *, diarized: bool = False) -> _Common:
    """Return what all forms state in the same way.

    `spoken`: the field that names the language of the recording, and its value. `diarized`: the format of the answer is
    diarized_json.
    """
    hotwords = (*fields.hotwords, *fields.keywords)
    if sum(map(len, hotwords)) > MAX_TEXT_CHARS:
        raise InvalidValue(f"The hotwords are longer than {MAX_TEXT_CHARS} characters together.", param="hotwords")
    speakers = speaker_options(fields, diarized=diarized)
    language, several = _languages(fields, *spoken)
    return {
        "language": language,
        "languages": several,
        "prompt": fields.prompt,
        "hotwords": hotwords,
        "temperature": fields.temperature,
        "chunking": _chunking(fields.chunking_strategy),
        "word_times": WordTimes.ALIGNED if fields.mode is Mode.ACCURATE else WordTimes.ESTIMATED,
        "speakers": speakers,
        "channel_mode": channel_mode(fields, speakers),
    }


def _languages(fields: RecordingForm, name: str, value: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the language to force, or None and those to detect it among. Raises the leaves of `InvalidInput`."""
    language = _normalized(value, name)
    several = dict.fromkeys(_normalized(each, "languages") for each in fields.languages)
    if not several or None in several:  # `auto` is one of any
        return language, ()
    if language is not None and language not in several:
        raise InvalidValue(f"'{name}' is not one of 'languages'.", param="languages")
    named = tuple(each for each in several if each)
    return (language or named[0], ()) if language or len(named) == 1 else (None, named)


def _normalized(value: str, param: str) -> str | None:
    try:
        return languages.normalize(value)
    except (InvalidLanguage, UnsupportedLanguage) as error:
        error.param = param
        raise


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


def _check_translation(fields: TranslationForm) -> None:
    """Refuse options that translations do not have."""
    if fields.response_format is ResponseFormat.DIARIZED_JSON:
        raise UnsupportedValue(
            "'diarized_json' is a format of transcriptions: a translation has its speakers in verbose_json.",
            param="response_format",
        )
    if fields.speakers and fields.response_format is ResponseFormat.JSON:
        raise InvalidValue("'json' does not show speakers: ask for verbose_json.", param="response_format")
    if fields.speaker_style is SpeakerStyle.DASH:
        raise UnsupportedValue("'dash' is not served: a cue is translated as a whole.", param="speaker_style")


def _fields(form: FormData, model: type[Form]) -> Form:
    """Return the checked text fields."""
    lists = frozenset(name for name, field in model.model_fields.items() if get_origin(field.annotation) is list)
    values: dict[str, Any] = dict(body.scalars(form, frozenset(model.model_fields) - lists))
    values |= {name: items for name in lists.difference(_WITH_COMMAS) if (items := body.listed(form, name))}
    values |= {name: items for name in _WITH_COMMAS if (items := body.repeated(form, name))}
    values |= {name: parts for name in ("chunking_strategy",) if (parts := body.nested(form, name))}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name, *inside = first["loc"]
    # The names inside other objects are the caller's own words.
    param = f"{name}.{inside[0]}" if name == "chunking_strategy" and inside else str(name)
    if first["type"] == "missing":
        return MissingParameter(f"The field '{param}' is required.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {first['msg']}.", param=param)
