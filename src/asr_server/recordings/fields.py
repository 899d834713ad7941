"""The text fields of every form with a recording, as pydantic models, which `/docs` shows too.

Unknown fields are ignored, as OpenAI's clients expect. `forms.py` refuses those fields of OpenAI's that are not served.
"""

from __future__ import annotations

import json
import unicodedata
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.net.body import NOT_JSON
from asr_server.recordings.requests import MAX_KNOWN_SPEAKERS, ChannelMode, ResponseFormat
from asr_server.subtitle.cues import SpeakerStyle

_MODEL = "A name from /v1/models; empty: the model that is loaded. Names of OpenAI's models mean that too."
# Of a prompt, and of all hotwords together: the engine reads them again for each span.
MAX_TEXT_CHARS = 16_000
# More than any model knows.
MAX_LANGUAGES = 100


def _boolean(value: Any) -> Any:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _object(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except NOT_JSON:
        return value


def _strategy(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


def _encodable(value: str) -> str:
    """JSON may hold halves of surrogate pairs, which no tokenizer accepts."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("it cannot be written in UTF-8") from None
    return value


def _one_line(value: str) -> str:
    """Names are shown in files whose lines have a meaning."""
    if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in value):
        raise ValueError("a name has no control characters and no line breaks")
    return value


Boolean = Annotated[bool, BeforeValidator(_boolean)]
Hotword = Annotated[str, AfterValidator(_encodable)]
SpeakerName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_one_line)]
Count = Annotated[int, Field(ge=1, le=MAX_SPEAKERS)]
Term = Annotated[str, Field(min_length=1, max_length=100)]
Glossary = Annotated[dict[Term, Term], BeforeValidator(_object), Field(max_length=200)]


class ChunkingStrategy(BaseModel):
    """OpenAI's object: how the recording is cut at pauses. `auto` ignores the other fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["auto", "server_vad"] = "auto"
    threshold: float = Field(default=0.5, ge=0.05, le=1)
    prefix_padding_ms: int = Field(default=300, ge=0, le=2_000)
    silence_duration_ms: int = Field(default=200, ge=32, le=5_000)


class Mode(StrEnum):
    """How words get their times."""

    ACCURATE = "accurate"
    FAST = "fast"


class RecordingForm(BaseModel):
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
    chunking_strategy: Annotated[ChunkingStrategy, BeforeValidator(_strategy)] = Field(
        ChunkingStrategy(), description="`auto`, or a `server_vad` object: threshold and times of the cuts at pauses."
    )
    mode: Mode = Field(
        Mode.ACCURATE,
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
    channel_mode: ChannelMode | None = Field(
        None,
        description="`split`: each channel is a speaker; `mix`: channels are one signal; `auto`, the default where "
        "speakers are told apart: what their sound suggests.",
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


class Task(StrEnum):
    """What a job produces: the same as the route of that name."""

    TRANSCRIPTION = "transcription"
    SUBTITLES = "subtitles"
    TRANSLATION = "translation"


class JobForm(TranscriptionForm):
    """`POST /v1/jobs` as `/docs` shows it. With another task, the fields are those of its route."""

    task: Task = Field(Task.TRANSCRIPTION, description="What the job produces. The fields are those of the route.")
