"""The forms with a recording: their fields, which `/docs` shows too, and the requests that are made of them.

Unknown fields are ignored, as OpenAI's clients expect. Fields of OpenAI's that are not served are refused.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from asr_server.core.errors import InvalidInput, UnsupportedLanguage
from asr_server.net import body
from asr_server.net.errors import ErrorBody
from asr_server.recordings.form_fields import (
    Boolean,
    ChunkingStrategy,
    Count,
    Glossary,
    Hotword,
    SpeakerName,
    Strategy,
    TextFields,
)
from asr_server.recordings.requests import (
    DEFAULT_MODEL,
    MAX_CLIPS_BYTES,
    MAX_KNOWN_SPEAKERS,
    MAX_LANGUAGES,
    MAX_TEXT_CHARS,
    ChannelMode,
    KnownSpeaker,
    OutputOptions,
    RecordingRequest,
    ResponseFormat,
    ServerVad,
    SpeakerOptions,
    SubtitleRequest,
    TextOptions,
    TranscriptionRequest,
    TranslationRequest,
    VoiceDetection,
    WordTimes,
)
from asr_server.subtitle.cues import SpeakerStyle
from asr_server.text import languages

if TYPE_CHECKING:
    from starlette.requests import Request

    from asr_server.engine.feature import Plan
    from asr_server.services import Services

_MODEL = "A name from /v1/models; empty: the model that is loaded. Names of OpenAI's models mean that too."


class RecordingForm(TextFields):
    """The fields of every form."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    prompt: str = Field(
        "", description="Text that helps recognition: names, terms, the topic.", max_length=MAX_TEXT_CHARS
    )
    hotwords: list[Hotword] = Field([], description="Words to listen for, comma-separated or repeated.")
    keywords: list[Hotword] = Field([], description="OpenAI's name for hotwords.")
    languages: list[Hotword] = Field(
        [],
        max_length=MAX_LANGUAGES,
        description="Languages that may be spoken, comma-separated or repeated: one of them is detected.",
    )
    temperature: float = Field(0.0, ge=0, le=1, description="0 is greedy and repeatable; above that, sampling.")
    chunking_strategy: Strategy = Field(
        ChunkingStrategy(), description="`auto`, or a `server_vad` object: threshold and times of the cuts at pauses."
    )
    vad: VoiceDetection = Field(
        VoiceDetection.STRICT, description="What is sent to the model: speech, loud sound too (`advise`), all (`off`)."
    )
    strict: Boolean = Field(False, description="An error if any part of the recording was not heard.")
    start: float = Field(
        0.0, ge=0, description="Seconds: spans that begin before are left out, for a transcript that continues."
    )
    mode: Literal["accurate", "fast"] = Field(
        "accurate",
        description="Times of words and subtitles: `accurate` aligns them with the sound, `fast` estimates them.",
    )
    speakers: Boolean = Field(False, description="Tell speakers apart. `diarized_json` means that too.")
    num_speakers: Count | None = Field(None, description="How many people speak, where that is known.")
    min_speakers: Count | None = Field(None, description="How many people speak at least.")
    max_speakers: Count | None = Field(None, description="How many people speak at most.")
    known_speaker_names: list[SpeakerName] = Field(
        [], max_length=MAX_KNOWN_SPEAKERS, description="Names of voices, one for each of the references, repeated."
    )
    known_speaker_references: list[str] = Field(
        [],
        max_length=MAX_KNOWN_SPEAKERS,
        description="Recordings of 2 to 10 s of one person each, as data URLs in base64, repeated.",
    )
    channel_mode: ChannelMode = Field(
        ChannelMode.MIX, description="`split`: each channel is a speaker; `mix`: channels are one signal."
    )


class CueForm(RecordingForm):
    """The fields of forms whose answer can be subtitles with a layout of the caller's."""

    max_line_chars: int = Field(42, ge=2, le=200, description="Widest line, in columns; a CJK character has two.")
    max_lines: int = Field(2, ge=1, le=4, description="Most lines of a cue.")
    speaker_style: SpeakerStyle = Field(
        SpeakerStyle.NAME,
        description="With speakers: their names, `dash` for two of them in one cue with a line each, or `none`.",
    )


class TranscriptionForm(RecordingForm):
    """`POST /v1/audio/transcriptions`."""

    model: str = Field("", description=_MODEL)
    language: str = Field("", description="ISO code, locale, English name, `auto` or empty (detect).")
    response_format: ResponseFormat = Field(ResponseFormat.JSON, description="Format of the answer.")
    timestamp_granularities: list[Literal["word", "segment", "cue"]] = Field(
        [], description="`segment` (default), `word` and `cue`, one or more, with verbose_json."
    )
    include: list[Literal["logprobs"]] = Field([], description="`logprobs`, with json.")
    stream: Boolean = Field(False, description="Server-sent events; of srt and vtt the last one has the whole file.")
    return_timestamps: Boolean = Field(False, description="`words` with their times, with json and verbose_json.")


class SubtitleForm(CueForm):
    """`POST /v1/audio/subtitles`."""

    model: str = Field("", description=_MODEL)
    language: str = Field("", description="ISO code, locale, English name, `auto` or empty (detect).")
    format: Literal["srt", "vtt"] = Field("srt", description="Kind of file.")


class TranslationForm(CueForm):
    """`POST /v1/audio/translations`."""

    model: str = Field("", description=_MODEL)
    language: str = Field("en", description="Target: any language, as a BCP 47 tag or an English name.")
    source_language: str = Field("", description="Language of the recording, as for transcriptions; empty: detect.")
    glossary: Glossary = Field({}, description='How to translate terms, as JSON: {"term": "translation"}.')
    response_format: ResponseFormat = Field(ResponseFormat.JSON, description="Format of the answer.")
    bilingual: Boolean = Field(False, description="The source text along with the translation.")
    source_on_failure: Boolean = Field(False, description="Where translating fails, the source instead of an error.")


Form = TypeVar("Form", bound=RecordingForm)
R = TypeVar("R", bound=RecordingRequest)
ReadForm = Callable[["Request", int], Awaitable[FormData]]

# The statuses of errors of the routes that take a recording.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody} for status in (400, 404, 413, 422, 429, 500, 501, 502, 503, 504)
}

# Lists whose items may contain commas: names, and data URLs.
_WITH_COMMAS = ("known_speaker_names", "known_speaker_references")
_FILE = {"type": "string", "format": "binary", "description": "The recording; its content decides, not its name."}


@asynccontextmanager
async def read(request: Request, services: Services, read_form: ReadForm = body.read_form) -> AsyncIterator[FormData]:
    """The form; its files are removed when the block ends. Raises `Overloaded` before the body is read if there is too
    much work even for what can wait."""
    services.admission.check_limit()
    form = await read_form(request, services.settings.max_upload_bytes)
    try:
        for parts in services.features:
            form = await parts.complete_form(form, request)
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
        hint = " It is a text: send it with a file name, as curl -F file=@recording.wav does." if "file" in form else ""
        raise InvalidInput(
            f"The form has no file part named 'file'.{hint}", code="missing_required_parameter", param="file"
        )
    try:
        request = build(form)
    except UnsupportedLanguage as error:
        raise services.catalog.unknown_language(param=error.param or "language") from None
    model = services.catalog.find(request.model, any_name=any_model).resident
    if not services.plan.traits.scores and (request.output.logprobs or request.vad is VoiceDetection.ADVISE):
        param = "include" if request.output.logprobs else "vad"
        raise InvalidInput("The engine gives no log-probabilities.", code="unsupported_value", param=param)
    if request.speakers and (request.channel_mode is not ChannelMode.SPLIT or request.speakers.known):
        _check_speakers(services.plan)
    source = "source_language" if isinstance(request, TranslationRequest) else "language"
    services.catalog.check_language(request.language, source, model=model)
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
    """Raise `unsupported_value` if voices cannot be distinguished. Channels need no model for that."""
    if not plan.is_active("speakers"):
        reason = next((option.reason for option in plan.options if option.name == "speakers"), "")
        raise InvalidInput(
            f"This server does not tell speakers apart by their voices ({reason}), only by channel, with "
            "channel_mode=split and without known speakers.",
            code="unsupported_value",
            param="speakers",
        )


def transcription_request(form: FormData) -> TranscriptionRequest:
    """Return the request of a form. Raises `InvalidInput`, also if the answer would not show the speakers."""
    request = segments_request(form)
    output, answer = request.output, request.output.response_format
    if request.speakers is None or output.words:
        return request
    if answer is ResponseFormat.JSON or (answer is ResponseFormat.TEXT and request.stream):
        raise InvalidInput(
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


def request_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of the form, as `/docs` shows it: a file and the fields."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, field in schema["properties"].items():
        if "anyOf" in field:  # a value or nothing
            field |= field.pop("anyOf")[0]
            del field["default"]
        if "$ref" in field.get("items", {}):
            inner = definitions[field["items"]["$ref"].rpartition("/")[2]]
            field["items"] = {key: inner[key] for key in ("enum", "type")}
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
    vad: VoiceDetection
    start_s: float
    strict: bool
    word_times: WordTimes
    speakers: SpeakerOptions | None
    channel_mode: ChannelMode
    text_options: TextOptions


def _common(fields: RecordingForm, spoken: tuple[str, str], *, diarized: bool = False) -> _Common:
    """Return what all forms state in the same way.

    `spoken`: the field that names the language of the recording, and its value. `diarized`: the format of the answer is
    diarized_json.
    """
    hotwords = (*fields.hotwords, *fields.keywords)
    if sum(map(len, hotwords)) > MAX_TEXT_CHARS:
        raise InvalidInput(f"The hotwords are longer than {MAX_TEXT_CHARS} characters together.", param="hotwords")
    speakers, strategy = speaker_options(fields, diarized=diarized), fields.chunking_strategy
    stated = ServerVad(strategy.threshold, strategy.prefix_padding_ms, strategy.silence_duration_ms)
    language, several = _languages(fields, *spoken)
    return {
        "language": language,
        "languages": several,
        "prompt": fields.prompt,
        "hotwords": hotwords,
        "temperature": fields.temperature,
        "chunking": None if strategy.type == "auto" else stated,
        "vad": fields.vad,
        "start_s": fields.start,
        "strict": fields.strict,
        "word_times": WordTimes.ALIGNED if fields.mode == "accurate" else WordTimes.ESTIMATED,
        "speakers": speakers,
        "channel_mode": fields.channel_mode,
        "text_options": fields.text_options,
    }


def _languages(fields: RecordingForm, name: str, value: str) -> tuple[str | None, tuple[str, ...]]:
    """Return the language to force, or None and those to detect it among. Raises the leaves of `InvalidInput`."""
    language = _normalized(value, name)
    several = dict.fromkeys(_normalized(each, "languages") for each in fields.languages)
    if not several or None in several:  # `auto` is one of any
        return language, ()
    if language is not None and language not in several:
        raise InvalidInput(f"'{name}' is not one of 'languages'.", param="languages")
    named = tuple(each for each in several if each)
    return (language or named[0], ()) if language or len(named) == 1 else (None, named)


def _normalized(value: str, param: str) -> str | None:
    try:
        return languages.normalize(value)
    except InvalidInput as error:
        error.param = param
        raise


def _check(fields: TranscriptionForm) -> None:
    """Refuse fields that contradict each other."""
    wanted = fields.response_format
    if fields.include and wanted is not ResponseFormat.JSON:
        raise InvalidInput("'include' needs response_format=json.", code="unsupported_value", param="include")
    if fields.return_timestamps and wanted not in (ResponseFormat.JSON, ResponseFormat.VERBOSE_JSON):
        raise InvalidInput(
            "'return_timestamps' needs json or verbose_json.", code="unsupported_value", param="return_timestamps"
        )
    # `segment` is the default, which some clients send along with every format.
    verbose_only = [name for name in fields.timestamp_granularities if name != "segment"]
    if verbose_only and wanted is not ResponseFormat.VERBOSE_JSON:
        raise InvalidInput(
            f"'timestamp_granularities' with '{verbose_only[0]}' needs response_format=verbose_json.",
            param="timestamp_granularities",
        )
    if fields.stream and "cue" in fields.timestamp_granularities:
        raise InvalidInput(
            "'timestamp_granularities' with 'cue' is not streamed.",
            code="unsupported_value",
            param="timestamp_granularities",
        )


def _check_translation(fields: TranslationForm) -> None:
    """Refuse options that translations do not have."""
    if fields.response_format is ResponseFormat.DIARIZED_JSON or fields.response_format.is_document:
        raise InvalidInput(
            f"'{fields.response_format}' is a format of transcriptions: a translation shows speakers in verbose_json.",
            code="unsupported_value",
            param="response_format",
        )
    if fields.speakers and fields.response_format is ResponseFormat.JSON:
        raise InvalidInput("'json' does not show speakers: ask for verbose_json.", param="response_format")
    if fields.speaker_style is SpeakerStyle.DASH:
        raise InvalidInput(
            "'dash' is not served: a cue is translated as a whole.", code="unsupported_value", param="speaker_style"
        )


def _fields(form: FormData, model: type[Form]) -> Form:
    """Return the checked text fields."""
    lists = _lists(model)
    values: dict[str, Any] = dict(body.scalars(form, frozenset(model.model_fields) - lists))
    values |= {name: items for name in lists.difference(_WITH_COMMAS) if (items := body.listed(form, name))}
    values |= {name: items for name in _WITH_COMMAS if (items := body.repeated(form, name))}
    values |= {name: parts for name in ("chunking_strategy",) if (parts := body.nested(form, name))}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _field_error(error) from None


@functools.cache
def _lists(model: type[RecordingForm]) -> frozenset[str]:
    return frozenset(name for name, field in model.model_fields.items() if get_origin(field.annotation) is list)


def _field_error(error: ValidationError) -> InvalidInput:
    first = error.errors()[0]
    name, *inside = first["loc"]
    # The names inside other objects are the caller's own words.
    param = f"{name}.{inside[0]}" if name == "chunking_strategy" and inside else str(name)
    if first["type"] == "missing":
        return InvalidInput(f"The field '{param}' is required.", code="missing_required_parameter", param=param)
    return InvalidInput(f"Invalid value for '{param}': {first['msg']}.", param=param)


_COUNTS = ("num_speakers", "min_speakers", "max_speakers")
_NAMES, _REFERENCES = "known_speaker_names", "known_speaker_references"


def speaker_options(fields: RecordingForm, *, diarized: bool = False) -> SpeakerOptions | None:
    """Return the options about speakers, or None if they are not distinguished. Raises `invalid_value`.

    `diarized`: the format of the answer is diarized_json. A field that has its default is the same as one that was left
    out, since generated clients send all fields.
    """
    if not (fields.speakers or diarized):
        _refuse(fields, (*_COUNTS, _NAMES, _REFERENCES, "speaker_style"), "needs speakers=true.")
        if fields.channel_mode is ChannelMode.SPLIT:
            raise InvalidInput("'channel_mode' needs speakers=true.", param="channel_mode")
        return None
    if fields.channel_mode is ChannelMode.SPLIT:
        _refuse(fields, _COUNTS, "contradicts channel_mode=split: its channels are the speakers.")
    at_least, at_most = _count(fields)
    return SpeakerOptions(at_least, at_most, _known(fields))


def _refuse(fields: RecordingForm, names: tuple[str, ...], reason: str) -> None:
    declared = type(fields).model_fields
    for name in names:
        if name in declared and getattr(fields, name) != declared[name].default:
            raise InvalidInput(f"'{name}' {reason}", param=name)


def _count(fields: RecordingForm) -> tuple[int, int | None]:
    exact, at_least, at_most = fields.num_speakers, fields.min_speakers, fields.max_speakers
    if exact is None:
        if at_least and at_most and at_least > at_most:
            raise InvalidInput("'min_speakers' is more than 'max_speakers'.", param="min_speakers")
        return at_least or 1, at_most
    if at_least or at_most:
        raise InvalidInput(
            "'num_speakers' is exact: leave out 'min_speakers' and 'max_speakers'.", param="num_speakers"
        )
    return exact, exact


def _known(fields: RecordingForm) -> tuple[KnownSpeaker, ...]:
    names, references = fields.known_speaker_names, fields.known_speaker_references
    if len(names) != len(references):
        raise InvalidInput(
            f"Every known speaker has a name and a reference, and there are {len(names)} names and {len(references)} "
            "references. Repeat the fields: a comma is part of a name.",
            param=_REFERENCES if len(references) < len(names) else _NAMES,
        )
    if len(set(names)) < len(names):
        raise InvalidInput("Two known speakers have the same name.", param=_NAMES)
    clips = [_clip(reference) for reference in references]
    if sum(map(len, clips)) > MAX_CLIPS_BYTES:
        raise InvalidInput(f"The references have more than {MAX_CLIPS_BYTES:_} bytes together.", param=_REFERENCES)
    return tuple(map(KnownSpeaker, names, clips))


def _clip(reference: str) -> bytes:
    """Return the audio file in a data URL, also with the line breaks that `base64` writes. Its type is ignored."""
    head, _, data = reference.partition(",")
    if not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        raise InvalidInput("A reference is a data URL like 'data:audio/wav;base64,UklGRg...'.", param=_REFERENCES)
    try:
        clip = base64.b64decode("".join(data.split()), validate=True)
    except ValueError:
        raise InvalidInput("A reference is not valid base64.", param=_REFERENCES) from None
    if not clip:
        raise InvalidInput("A reference is empty.", param=_REFERENCES)
    return clip
