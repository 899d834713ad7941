"""The body of speech requests, and what its fields mean."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from asr_server.audio.encoding.formats import MAX_PAUSE_MS, MAX_SPEED, MIN_SPEED, SpeechFormat
from asr_server.core.errors import InvalidValue, MissingParameter
from asr_server.service.catalog import Catalog
from asr_server.service.speech.requests import (
    DEFAULT_MODEL,
    DEFAULT_VOICE,
    MAX_INSTRUCTIONS_CHARS,
    SpeechRequest,
)
from asr_server.service.speech.voice_sample import MAX_SAMPLE_S, MIN_SAMPLE_S

# More than anybody says in the longest recording.
MAX_REFERENCE_CHARS = 2_000
# What the text may have of characters that do not print.
_SPACES = "\t\n\r\u2028\u2029"


def _printable(text: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Cs") and char not in _SPACES for char in text):
        raise ValueError("it has control characters")
    return text


Text = Annotated[str, AfterValidator(_printable)]


class VoiceId(BaseModel):
    """OpenAI's other form of a voice."""

    id: str = Field(max_length=200)


class SpeechOptions(BaseModel):
    """How a text is spoken."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(DEFAULT_MODEL, max_length=200, description="Any of OpenAI's names for speech models.")
    voice: str | VoiceId = Field(DEFAULT_VOICE, description="OpenAI's names, and those of `GET /v1/audio/voices`.")
    instructions: Text = Field("", max_length=MAX_INSTRUCTIONS_CHARS, description="How to speak, where the engine can.")
    response_format: SpeechFormat = SpeechFormat.MP3
    speed: float = Field(1.0, ge=MIN_SPEED, le=MAX_SPEED, description="At the same pitch.")
    language: str | None = Field(
        None, max_length=60, description="A BCP 47 tag or an English name; not given: that of the text's script."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Another one makes another answer where the engine samples.")
    spell_out: bool = Field(True, description="Speak numbers, dates and currency in words.")
    pause_ms: int = Field(250, ge=0, le=MAX_PAUSE_MS, description="Silence between two sentences.")


class SpeechBody(SpeechOptions):
    """`POST /v1/audio/speech`."""

    input: Text = Field(description="The text to speak.")
    stream_format: Literal["audio", "sse"] = "audio"


class CloneForm(SpeechBody):
    """`POST /v1/audio/speech/clone`, whose voice is that of its file."""

    ref_text: Text = Field(
        "", max_length=MAX_REFERENCE_CHARS, description="What is said in the recording; it helps to imitate the voice."
    )


# The text fields of the form.
CLONE_FIELDS = frozenset(CloneForm.model_fields) - {"voice"}


def clone_schema() -> dict[str, Any]:
    """The form as `/docs` shows it."""
    properties = CloneForm.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    file = {
        "type": "string",
        "format": "binary",
        "description": f"A recording of {MIN_SAMPLE_S:g} to {MAX_SAMPLE_S:g} s in which one person speaks.",
    }
    fields = {name: properties[name] for name in sorted(CLONE_FIELDS)}
    schema = {"type": "object", "required": ["file", "input"], "properties": {"file": file, **fields}}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def speech_request(body: SpeechBody, catalog: Catalog) -> SpeechRequest:
    """What the body asks for. Raises `InvalidValue`, `MissingParameter` and `UnknownModel`."""
    if not body.input.strip():
        raise MissingParameter("There is no text to speak.", param="input")
    return request_for(body, body.input, catalog)


def request_for(options: SpeechOptions, text: str, catalog: Catalog) -> SpeechRequest:
    """The request to speak that text. Raises `InvalidValue` and `UnknownModel`."""
    catalog.find_speech(options.model)
    voice = options.voice if isinstance(options.voice, str) else options.voice.id
    if len(voice) > 200:
        raise InvalidValue("The name of the voice is too long.", param="voice")
    return SpeechRequest(
        text=text,
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
