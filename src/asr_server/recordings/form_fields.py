"""The types of form fields, and the fields of forms for the way in which a text is written."""

from __future__ import annotations

import json
import unicodedata
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from asr_server.core.transcript import MAX_SPEAKERS
from asr_server.net.body import NOT_JSON
from asr_server.recordings.requests import PersonalData, Profanity, TextFormat, TextOptions


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


Strategy = Annotated[ChunkingStrategy, BeforeValidator(_strategy)]


class TextFields(BaseModel):
    """The fields of forms for these options."""

    text_format: TextFormat = Field(
        TextFormat.MODEL, description="Numbers in digits (`written`), in words (`spoken`), or as the model has them."
    )
    profanity: Profanity = Field(
        Profanity.KEEP, description="Words of the server's lists: `mask` shows `f***`, `hide` shows `****`."
    )
    redact: list[PersonalData] = Field(
        [],
        max_length=20,
        description="Personal data to replace by its kind, as `[EMAIL]`; comma-separated or repeated. Names and "
        "addresses are not found.",
    )

    @property
    def text_options(self) -> TextOptions:
        """The options that the fields state."""
        return TextOptions(self.text_format, self.profanity, tuple(dict.fromkeys(self.redact)))
