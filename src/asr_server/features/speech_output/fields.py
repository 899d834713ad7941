"""The body of speech requests, and the meaning of its fields."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from asr_server.core.errors import InvalidValue, MissingParameter, TextTooLong
from asr_server.engine.catalog import Catalog
from asr_server.features.speech_output.chapters import Chapter, markdown_chapters
from asr_server.features.speech_output.encoding.formats import (
    MAX_PAUSE_MS,
    MAX_SPEED,
    MIN_SPEED,
    STREAMED_FORMATS,
    SpeechFormat,
)
from asr_server.features.speech_output.requests import (
    DEFAULT_MODEL,
    DEFAULT_VOICE,
    MAX_INSTRUCTIONS_CHARS,
    SpeechJobRequest,
    SpeechRequest,
)
from asr_server.features.speech_output.voice_sample import MAX_SAMPLE_S, MIN_SAMPLE_S
from asr_server.net.body import schema_of

# More than can be said in the longest recording.
MAX_REFERENCE_CHARS = 2_000
# Unicode's categories Cc and Cs, but for tabs and line ends.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# Of a text that is spoken as a job.
MAX_JOB_CHARS, MAX_CHAPTERS, MAX_TITLE_CHARS = 2_000_000, 1_000, 200


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("it has control characters")
    return text


def _streamed(audio_format: SpeechFormat) -> SpeechFormat:
    if audio_format not in STREAMED_FORMATS:
        raise ValueError(f"only jobs make {audio_format} files")
    return audio_format


Text = Annotated[str, AfterValidator(_printable)]
StreamedFormat = Annotated[
    SpeechFormat,
    AfterValidator(_streamed),
    WithJsonSchema({"type": "string", "enum": [str(one) for one in STREAMED_FORMATS]}),
]


class VoiceId(BaseModel):
    """OpenAI's other form of a voice."""

    id: str = Field(max_length=200)


class SpeechOptions(BaseModel):
    """The way in which a text is spoken."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(DEFAULT_MODEL, max_length=200, description="Any of OpenAI's names for speech models.")
    voice: str | VoiceId = Field(DEFAULT_VOICE, description="OpenAI's names, and those of `GET /v1/audio/voices`.")
    instructions: Text = Field("", max_length=MAX_INSTRUCTIONS_CHARS, description="How to speak, where the engine can.")
    response_format: StreamedFormat = SpeechFormat.MP3
    speed: float = Field(1.0, ge=MIN_SPEED, le=MAX_SPEED, description="At the same pitch.")
    language: str | None = Field(
        None, max_length=60, description="A BCP 47 tag or an English name; not given: that of the text's script."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Another one makes another answer where the engine samples.")
    spell_out: bool = Field(True, description="Speak numbers, dates and currency in words.")
    pause_ms: int = Field(250, ge=0, le=MAX_PAUSE_MS, description="Silence between two sentences.")


class SpeechBody(SpeechOptions):
    """`POST /v1/audio/speech`."""

    input: Text = Field(description="The text to speak.", examples=["Dinner is ready."])
    stream_format: Literal["audio", "sse"] = "audio"


class ChapterBody(BaseModel):
    """A chapter of a long text."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: Text = Field("", max_length=MAX_TITLE_CHARS, description="For players; it is not spoken.")
    text: Text = Field(max_length=MAX_JOB_CHARS, description="All that is spoken.")


class SpeechJobBody(SpeechOptions):
    """`POST /v1/audio/speech/jobs`: `input` or `chapters`."""

    response_format: SpeechFormat = SpeechFormat.MP3
    input: Text | None = Field(
        None, max_length=MAX_JOB_CHARS, description="The text to speak.", examples=["Dinner is ready."]
    )
    split_chapters: bool = Field(
        False, description="Divide `input` at Markdown headings of the first level (`# Title`), which are spoken."
    )
    chapters: list[ChapterBody] | None = Field(None, max_length=MAX_CHAPTERS)


class CloneForm(SpeechBody):
    """`POST /v1/audio/speech/clone`, whose voice is that of its file."""

    ref_text: Text = Field(
        "", max_length=MAX_REFERENCE_CHARS, description="What is said in the recording; it helps to imitate the voice."
    )


# The text fields of the form.
CLONE_FIELDS = frozenset(CloneForm.model_fields) - {"voice"}


def clone_schema() -> dict[str, Any]:
    """Return the schema of the form, as `/docs` shows it."""
    properties = schema_of(CloneForm)["properties"]
    file = {
        "type": "string",
        "format": "binary",
        "description": f"A recording of {MIN_SAMPLE_S:g} to {MAX_SAMPLE_S:g} s in which one person speaks.",
    }
    fields = {name: properties[name] for name in sorted(CLONE_FIELDS)}
    schema = {"type": "object", "required": ["file", "input"], "properties": {"file": file, **fields}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def speech_request(body: SpeechBody, catalog: Catalog) -> SpeechRequest:
    """Return the request in a body. Raises `InvalidValue`, `MissingParameter` and `UnknownModel`."""
    if not body.input.strip():
        raise MissingParameter("There is no text to speak.", param="input")
    return request_for(body, body.input, catalog)


def request_for(options: SpeechOptions, text: str, catalog: Catalog) -> SpeechRequest:
    """Return the request to speak that text. Raises `InvalidValue` and `UnknownModel`."""
    return speech_job_request(options, catalog).of(text)


def speech_job_request(options: SpeechOptions, catalog: Catalog) -> SpeechJobRequest:
    """Return the request for a job with these options. Raises `InvalidValue` and `UnknownModel`."""
    catalog.find_speech(options.model)
    voice = options.voice if isinstance(options.voice, str) else options.voice.id
    if len(voice) > 200:
        raise InvalidValue("The name of the voice is too long.", param="voice")
    return SpeechJobRequest(
        model=options.model,
        voice=voice,
        language=options.language or None,
        format=options.response_format,
        speed=options.speed,
        instructions=options.instructions,
        seed=options.seed,
        spell_out=options.spell_out,
        pause_ms=options.pause_ms,
    )


def chapters_of(body: SpeechJobBody) -> tuple[Chapter, ...]:
    """Return the chapters to speak. Raises `InvalidValue`, `MissingParameter` and `TextTooLong`."""
    if body.chapters is not None:
        if body.input is not None:
            raise InvalidValue("There are both 'input' and 'chapters'.", param="chapters")
        chapters = tuple(Chapter(chapter.title.strip(), chapter.text) for chapter in body.chapters)
        for number, chapter in enumerate(chapters):
            if not chapter.is_speakable:
                raise InvalidValue("A chapter has nothing to speak.", param=f"chapters.{number}.text")
    elif body.input is not None and body.split_chapters:
        chapters = tuple(markdown_chapters(body.input))
    else:
        chapters = (Chapter("", body.input or ""),)
    if not chapters or not any(chapter.is_speakable for chapter in chapters):
        raise MissingParameter("There is no text to speak.", param="input" if body.chapters is None else "chapters")
    if sum(len(chapter.text) for chapter in chapters) > MAX_JOB_CHARS:
        raise TextTooLong(f"The chapters have more than {MAX_JOB_CHARS} characters.", param="chapters")
    if len(chapters) > MAX_CHAPTERS:
        raise InvalidValue(f"The text has more than {MAX_CHAPTERS} chapters.", param="input")
    return tuple(replace(chapter, title=chapter.title[:MAX_TITLE_CHARS]) for chapter in chapters)
